"""The part of queues, events and transactions that both shells share. A shell's calls return values or coroutines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from curbstone_client import content
from curbstone_client.base import send_headers
from curbstone_client.consuming import PREFETCH
from curbstone_client.message import BaseMessage

Sent = TypeVar("Sent")
"""What a shell's `send` returns: the confirm, or an awaitable that returns it."""
Published = TypeVar("Published")
"""What a shell's `publish` returns: the `Stored`, or a coroutine that returns it."""
Arriving = TypeVar("Arriving")
"""A shell's messages of a subscription."""
Answered = TypeVar("Answered")
"""What a shell's `request` returns: the answer, or a coroutine that returns it."""
Fields = TypeVar("Fields")
"""What a shell's calls of the HTTP interface return: a dict, or a coroutine that returns it."""


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
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        priority: int | None = None,
        unique: str | None = None,
        unique_until: str | None = None,
        replace: str | None = None,
        replace_max: float | None = None,
        batch: str | None = None,
        batch_size: int | None = None,
        batch_to: str | None = None,
        idempotency_key: str | None = None,
        seq: int | None = None,
    ) -> Sent:
        """Send a message and return its `Confirm`, without waiting for the confirm itself.

        This waits only while the window is full. A str is sent as text, bytes as they are, and everything else as JSON;
        `type` replaces the content type that follows from this. `delay` and `ttl` are in seconds. Messages with the
        same `key` are delivered one at a time, in order. `priority` is from 0 to 9, 4 if it is not given; messages of a
        higher one are delivered first. While a message with the name `unique` waits in the queue, no other one with it
        is stored; with `unique_until="delivered"` that ends at its first delivery, otherwise when it is settled. A
        message with the name `replace` takes the place of the one with it that waits, unless that and those it has
        replaced have waited for `replace_max` seconds. When as many messages of the `batch` are stored as its
        `batch_size` says, and all of them are settled, the queue `batch_to` gets a report; one message has to name
        these two. A message that is published again under the same `idempotency_key`, within the queue's
        `idempotency_window`, is stored once; with other content it is refused with status 422. `seq` is the message's
        number; a client with a `producer` gives one to each message for a queue, in ascending order, unless the message
        has an `idempotency_key`.
        """
        is_keyed = idempotency_key is not None
        is_plain = not (type or headers or delay or is_keyed or unique_until or replace_max or batch_size or batch_to)
        is_plain = is_plain and ttl is None and key is None and priority is None and unique is None and replace is None
        is_plain = is_plain and batch is None
        options = (
            type,
            headers,
            delay,
            ttl,
            key,
            idempotency_key,
            priority,
            unique,
            unique_until,
            replace,
            replace_max,
            batch,
            batch_size,
            batch_to,
        )
        more = "" if is_plain else content.lines(*options)
        sent: Sent = self.client.send(self.destination, body, more, type, seq, is_keyed)
        return sent

    def publish(
        self,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        priority: int | None = None,
        unique: str | None = None,
        unique_until: str | None = None,
        replace: str | None = None,
        replace_max: float | None = None,
        batch: str | None = None,
        batch_size: int | None = None,
        batch_to: str | None = None,
        idempotency_key: str | None = None,
        seq: int | None = None,
        timeout: float | None = None,
    ) -> Published:
        """Publish a message; it is on disk when this returns. The parameters are those of `send`.

        Raise Refused if the server refuses the message. Raise Unknown if there is no confirm within `timeout` seconds:
        the message may still be stored.
        """
        sent = self.send(
            body,
            type=type,
            headers=headers,
            delay=delay,
            ttl=ttl,
            key=key,
            priority=priority,
            unique=unique,
            unique_until=unique_until,
            replace=replace,
            replace_max=replace_max,
            batch=batch,
            batch_size=batch_size,
            batch_to=batch_to,
            idempotency_key=idempotency_key,
            seq=seq,
        )
        return self._stored(sent, timeout)

    @abstractmethod
    def _stored(self, sent: Sent, timeout: float | None) -> Published:
        """Wait for the confirm of a message."""


class BaseQueue(Target[Sent, Published], Generic[Sent, Published, Arriving, Answered, Fields]):
    """A queue, as one client uses it."""

    def consume(self, prefetch: int = PREFETCH, *, group: str | None = None) -> Arriving:
        """Subscribe to the queue and return its messages: `for message in queue.consume(): …`.

        `prefetch` is how many deliveries may be unsettled at once. `group` names an independent reader of the queue.
        """
        headers = {"x-ks-group": group} if group else {}
        messages: Arriving = self.client.subscribe(self.destination, prefetch, headers)
        return messages

    def request(self, body: content.Body, *, timeout: float = 30, headers: Mapping[str, str] | None = None) -> Answered:
        """Send a message and return the answer, which is the value that a worker's handler returned.

        Raise Unknown if there is no answer within `timeout` seconds.
        """
        answer: Answered = self.client.request(self.destination, body, timeout, dict(headers or {}))
        return answer

    def info(self) -> Fields:
        """Return the counts of the queue's messages, and its options, as the HTTP interface has them."""
        return self._call("GET")

    def keys(self, *, limit: int = 20, by: str = "waiting", group: str = "") -> Fields:
        """Return the keys with the most messages that wait, or with `by="in_flight"` in flight, as `GET …/keys` does.

        The result has their number, `total`, and a list of at most `limit` of them, `keys`; of the reading group
        `group` if it is given.
        """
        return self._call("GET", f"/keys?limit={limit}&by={by}&group={quote(group, safe='')}")

    def pause(self, *, deliver: bool = True, publish: bool = False) -> Fields:
        """Pause the queue until `resume`: deliver nothing, and with `publish=True` refuse new messages.

        Return what is paused now.
        """
        return self._call("POST", "/pause", {"deliver": deliver, "publish": publish})

    def resume(self) -> Fields:
        """End what `pause` began, and return what is paused now."""
        return self._call("POST", "/resume")

    def undo(self, *, limit: int = 1000, within: float | None = None, id: str | None = None, group: str = "") -> Fields:
        """Bring back messages that were acked, popped or purged, if the queue's log still has them.

        At most `limit` messages are restored: those that were settled in the last `within` seconds, or the one
        with this `id`; of the reading group `group` if it is given. Return how many messages are `restored`, were
        `gone` or had `expired`, and whether there is `more`.
        """
        return self._call("POST", "/undo", _without_none({"limit": limit, "within": within, "id": id, "group": group}))

    def purge(self, *, keep: bool = False) -> Fields:
        """Drop all messages that are ready or delayed, and return how many those were.

        The messages are erased from the disk, unless `keep=True` keeps them for `undo`.
        """
        return self._call("POST", "/purge", {"keep": keep})

    def redrive(self, *, to: str | None = None, limit: int | None = None, id: str | None = None) -> Fields:
        """Move dead letters back to the queues that they were in, or to the queue `to`.

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
        """Return the messages that are published from now on. Those published during a lost connection are missed.

        With a `filter`, such as `"region = 'eu' AND priority >= 5"`, only those whose headers pass it.
        """
        headers = {"selector": filter} if filter else None
        messages: Arriving = self.client.subscribe(self.destination, prefetch, headers, acked=False)
        return messages


class BaseTransaction:
    """Messages to publish and messages to ack, all or nothing. They are committed at the end of the `with` block."""

    def __init__(self, client: Any, messages: Sequence[BaseMessage[Any]]) -> None:
        self._client = client
        self._messages = messages
        self.sends: list[tuple[dict[str, str], bytes]] = []

    def publish(
        self,
        queue: str,
        body: content.Body,
        *,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        priority: int | None = None,
        unique: str | None = None,
        unique_until: str | None = None,
        replace: str | None = None,
        replace_max: float | None = None,
        batch: str | None = None,
        batch_size: int | None = None,
        batch_to: str | None = None,
    ) -> None:
        """Add a message to the transaction; it is sent with the commit. The options are those of `Queue.send`."""
        options = (
            type,
            headers,
            delay,
            ttl,
            key,
            priority,
            unique,
            unique_until,
            replace,
            replace_max,
            batch,
            batch_size,
            batch_to,
        )
        self.sends.append(send_headers(self._client.destination(queue), body, *options))

    def _give_back(self, error: BaseException) -> None:
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call's body without those that are not given."""
    return {name: value for name, value in fields.items() if value is not None}
