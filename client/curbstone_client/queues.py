"""The part of queues, events and transactions that both shells share. A shell's calls return values or coroutines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack
from urllib.parse import quote

from curbstone_client import content
from curbstone_client.base import send_headers
from curbstone_client.consuming import PREFETCH
from curbstone_client.message import BaseMessage

Sent = TypeVar("Sent")
"""The result of a shell's `send`: the confirm, or an awaitable that returns it."""
Published = TypeVar("Published")
"""The result of a shell's `publish`: the `Stored`, or a coroutine that returns it."""
Arriving = TypeVar("Arriving")
"""A shell's messages of a subscription."""
Answered = TypeVar("Answered")
"""The result of a shell's `request`: the reply, or a coroutine that returns it."""
Fields = TypeVar("Fields")
"""The result of a shell's calls of the HTTP interface: a dict, or a coroutine that returns it."""


class Target(ABC, Generic[Sent, Published]):
    """A queue or an event: something that messages can be published to."""

    def __init__(self, client: Any, name: str, destination: str) -> None:
        self.client = client
        self.name = name
        self.destination = destination

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.destination.split('/', 2)[2]}>"

    def send(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        seq: int | None = None,
        **options: Unpack[content.SendOptions],
    ) -> Sent:
        """Send a message and return its `Confirm`, without waiting for the confirm itself.

        It waits only while the window is full. A str is sent as text, bytes unchanged, and everything else as JSON.
        The options, with durations in seconds:

        - `type`: the content type, instead of the one derived from the body.
        - `headers`: headers of the application.
        - `delay`: how long before the message is delivered. `ttl`: how long until it expires.
        - `key`: the ordering key. Messages with the same key are delivered one at a time, in order.
        - `priority`: from 0 to 9, by default 4. Messages with a higher priority are delivered first.
        - `unique`: a unique name. While a message with this name waits in the queue, no other one is stored.
          `unique_until="delivered"` frees the name at the first delivery, not when the message is settled.
        - `replace`: a name. The message replaces the waiting message with this name, unless that one and those it
          replaced have waited for `replace_max` seconds.
        - `batch`: the id of a batch. When `batch_size` messages of it are stored and all of them are settled, the queue
          `batch_to` gets a report; at least one message of the batch must have these two.
        - `idempotency_key`: a message that is published again with the same key, within the queue's
          `idempotency_window`, is stored once. With other content it is refused with status 422.
        - `seq`: the number of the message. A client with a `producer` numbers all messages for a queue in ascending
          order, except those with an `idempotency_key`.
        """
        more = content.lines(type, **options) if type or options else ""
        is_keyed = options.get("idempotency_key") is not None
        sent: Sent = self.client.send(self.destination, body, more, type, seq, is_keyed)
        return sent

    def publish(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        seq: int | None = None,
        timeout: float | None = None,
        **options: Unpack[content.SendOptions],
    ) -> Published:
        """Publish a message; it is on disk when this returns. The options are those of `send`.

        Raise Refused if the server refuses the message. Raise Unknown if there is no confirm within `timeout` seconds:
        the message may still be stored.
        """
        return self._stored(self.send(body, type=type, seq=seq, **options), timeout)

    @abstractmethod
    def _stored(self, sent: Sent, timeout: float | None) -> Published:
        """Wait for the confirm of a message."""


class BaseQueue(Target[Sent, Published], Generic[Sent, Published, Arriving, Answered, Fields]):
    """A queue, as one client uses it."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Arriving:
        """Subscribe to the queue and return its messages: `for message in queue.consume(): …`.

        `prefetch` is the maximum number of unsettled deliveries. `group` names a consumer group of the queue.
        """
        headers = {"x-ks-group": group} if group else {}
        messages: Arriving = self.client.subscribe(self.destination, prefetch, headers)
        return messages

    def request(self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None) -> Answered:
        """Send a message and return the reply, which is the value that a worker's handler returned.

        Raise Unknown if there is no reply within `timeout` seconds.
        """
        answer: Answered = self.client.request(self.destination, body, timeout, dict(headers or {}))
        return answer

    def info(self) -> Fields:
        """Return the counts of the queue's messages, and its options, as the HTTP interface does."""
        return self._call("GET")

    def keys(self, *, limit: int = 20, by: str = "waiting", group: str = "") -> Fields:
        """Return the keys with the most messages that wait, or with `by="in_flight"` in flight, as `GET …/keys` does.

        The result has their number, `total`, and a list of at most `limit` of them, `keys`; of the group `group` if it
        is given.
        """
        return self._call("GET", f"/keys?limit={limit}&by={by}&group={quote(group, safe='')}")

    def pause(self, *, deliver: bool = True, publish: bool = False) -> Fields:
        """Pause the queue until `resume`: deliver nothing, and with `publish=True` refuse new messages.

        Return what is paused now.
        """
        return self._call("POST", "/pause", {"deliver": deliver, "publish": publish})

    def resume(self) -> Fields:
        """Undo `pause`, and return what is paused now."""
        return self._call("POST", "/resume")

    def undo(self, *, limit: int = 1000, within: float | None = None, id: str | None = None, group: str = "") -> Fields:
        """Restore messages that were acked, popped or purged, if the queue's log still has them.

        At most `limit` messages are restored: those that were settled in the last `within` seconds, or the one
        with this `id`; of the group `group` if it is given. Return how many messages are `restored`, were
        `gone` or had `expired`, and whether there is `more`.
        """
        return self._call("POST", "/undo", _without_none({"limit": limit, "within": within, "id": id, "group": group}))

    def purge(self, *, keep: bool = False) -> Fields:
        """Drop all messages that are ready or delayed, and return how many.

        The messages are erased from the disk, unless `keep=True` keeps them for `undo`.
        """
        return self._call("POST", "/purge", {"keep": keep})

    def redrive(self, *, to: str | None = None, limit: int | None = None, id: str | None = None) -> Fields:
        """Move dead letters back to the queues they came from, or to the queue `to`.

        At most `limit` of them are moved, or only the one with this `id`. Return how many were `moved`, how many
        `stayed` by the reason, and whether there is `more`.
        """
        return self._call("POST", "/redrive", _without_none({"to": to, "limit": limit, "id": id}))

    def _call(self, method: str, more: str = "", body: Any = None) -> Fields:
        found: Fields = self.client.call(method, self.client.queue_path(self.name, more), body)
        return found


class BaseEvent(Target[Sent, Published], Generic[Sent, Published, Arriving]):
    """An event, as one client uses it."""

    def subscribe(self, prefetch: int = PREFETCH, *, filter: str = "") -> Arriving:
        """Return the messages that are published from now on. Those published without a connection are missed.

        With a `filter`, such as `"region = 'eu' AND priority >= 5"`, only those whose headers match it.
        """
        headers = {"selector": filter} if filter else None
        messages: Arriving = self.client.subscribe(self.destination, prefetch, headers, acked=False)
        return messages


class BaseTransaction:
    """Publishes and acks messages atomically, at the end of the `with` block."""

    def __init__(self, client: Any, messages: Sequence[BaseMessage[Any]]) -> None:
        self._client = client
        self._messages = messages
        self.sends: list[tuple[dict[str, str], bytes]] = []

    def publish(
        self, queue: str, body: content.Body, *, type: str | None = None, **options: Unpack[content.Options]
    ) -> None:
        """Add a message to the transaction; it is sent with the commit. The options are those of `Queue.send`."""
        self.sends.append(send_headers(self._client.destination(queue), body, type, **options))

    def _give_back(self, error: BaseException) -> None:
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call's body without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}
