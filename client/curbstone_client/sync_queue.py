"""What an application of the client for threads publishes to and consumes from: queues, events and transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from curbstone_client import base, content
from curbstone_client.consuming import PREFETCH
from curbstone_client.errors import ClientError, NoSuchQueue
from curbstone_client.publishing import Stored
from curbstone_client.sync_messages import Batches, Message, Messages

if TYPE_CHECKING:
    from curbstone_client.sync import Client, Confirm


class _Target(base.Named):
    """A queue or an event: something that messages can be published to."""

    def __init__(self, client: Client, name: str, destination: str) -> None:
        self.client = client
        self.name = name
        self.destination = destination

    def send(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        seq: int | None = None,
    ) -> Confirm:
        """Send a message and return its `Confirm`, without waiting for the confirm itself.

        This blocks only while the window is full. A str is sent as text, bytes as they are, and everything else as
        JSON; `type` replaces the content type that follows from this. `delay` and `ttl` are in seconds. Messages with
        the same `key` are delivered one at a time, in order. A message that is published again under the same
        `idempotency_key`, within the queue's `idempotency_window`, is stored once; with other content it is refused
        with status 422. `seq` is the message's number; a client with a `producer` gives one to each message for a
        queue, in ascending order, unless the message has an `idempotency_key`.
        """
        is_keyed = idempotency_key is not None
        is_plain = not (type or headers or delay or is_keyed) and ttl is None and key is None
        more = "" if is_plain else content.lines(type, headers, delay, ttl, key, idempotency_key)
        return self.client.send(self.destination, body, more, type, seq, is_keyed)

    def publish(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        seq: int | None = None,
        timeout: float | None = None,
    ) -> Stored:
        """Publish a message; it is on disk when this returns. Raise Refused, or Unknown after `timeout` seconds."""
        confirm = self.send(
            body,
            type=type,
            headers=headers,
            delay=delay,
            ttl=ttl,
            key=key,
            idempotency_key=idempotency_key,
            seq=seq,
        )
        return confirm.result(timeout)


class Queue(_Target):
    """A queue, as one client uses it."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Messages:
        """Subscribe, as `group` if it is given, and return the messages: `for message in queue.consume(): …`."""
        headers = {"x-ks-group": group} if group else {}
        return self.client.subscribe(self.destination, prefetch, headers)

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Subscribe and return batches of at most `size` messages. A batch ends `wait` seconds after its first one."""
        return Batches(self.consume(2 * size, group=group), size, wait)

    def request(self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None) -> Message:
        """Send a message and return what a worker's handler answered. Raise Unknown if nothing came in `timeout` s."""
        return self.client.request(self.destination, body, timeout, dict(headers or {}))

    def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that the queue has stored, or None if it has stored none."""
        try:
            found = self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # 404 says that either the queue or the producer is unknown
            return None
        return int(found["seq"])

    def info(self) -> dict[str, Any]:
        """Return the counts of the queue's messages, and its options, as the HTTP interface has them."""
        found: dict[str, Any] = self._call("GET")
        return found

    def pause(self, *, deliver: bool = True, publish: bool = False) -> dict[str, Any]:
        """Deliver nothing until `resume`, and with `publish=True` refuse new messages. Return what is paused now."""
        paused: dict[str, Any] = self._call("POST", "/pause", {"deliver": deliver, "publish": publish})
        return paused

    def resume(self) -> dict[str, Any]:
        """End what `pause` began, and return what is paused now."""
        paused: dict[str, Any] = self._call("POST", "/resume")
        return paused

    def undo(
        self, *, limit: int = 1000, within: float | None = None, id: str | None = None, group: str = ""
    ) -> dict[str, Any]:
        """Bring back messages that were acked, popped or purged, if the queue's log still has them.

        At most `limit` messages are brought back: those that were settled in the last `within` seconds, or the one
        with this `id`; of the reading group `group` if it is given. Return how many messages are `restored`, were
        `gone` or had `expired`, and whether there is `more`.
        """
        body = {"limit": limit, "within": within, "id": id, "group": group}
        undone: dict[str, Any] = self._call("POST", "/undo", base.without_none(body))
        return undone

    def purge(self, *, keep: bool = False) -> dict[str, Any]:
        """Drop all messages that are ready or delayed; return how many. Erase them unless `keep=True` allows `undo`."""
        purged: dict[str, Any] = self._call("POST", "/purge", {"keep": keep})
        return purged

    def redrive(self, *, to: str | None = None, limit: int | None = None, id: str | None = None) -> dict[str, Any]:
        """Move dead letters back to the queues that they were in, or to the queue `to`.

        At most `limit` of them are moved, or only the one with this `id`. Return how many were `moved`, how many
        `stayed` by the reason, and whether there is `more`.
        """
        body = {"to": to, "limit": limit, "id": id}
        moved: dict[str, Any] = self._call("POST", "/redrive", base.without_none(body))
        return moved

    def delete(self) -> None:
        """Delete the queue and all it holds."""
        self._call("DELETE")

    def _call(self, method: str, more: str = "", body: Any = None) -> Any:
        return self.client.call(method, self.client.queue_path(self.name, more), body)


class Event(_Target):
    """An event, as one client uses it."""

    def subscribe(self, prefetch: int = PREFETCH) -> Messages:
        """Return the messages that are published from now on. Those published during a lost connection are missed."""
        return self.client.subscribe(self.destination, prefetch, acked=False)


class Transaction(base.Sends):
    """Messages to publish and messages to ack, all or nothing. They are committed at the end of the `with` block."""

    def __init__(self, client: Client, messages: Sequence[Message]) -> None:
        super().__init__(client.destination)
        self._client = client
        self._messages = messages

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; all is on disk when this returns. If the block raised, commit nothing and give the messages back."""
        if error is None:
            try:
                self._client.commit(self.sends, self._messages)
                return
            except ClientError as refused:
                self._give_back(refused)
                raise
        self._give_back(error)

    def _give_back(self, error: BaseException) -> None:
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)
