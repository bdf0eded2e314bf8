"""The destinations of a publishing WebSocket, and how they confirm messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey, Numbered, Published
from curbstone.gateway.websocket.codec import text_frame

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue

_CONFIRM = text_frame(b"")


class Target(Protocol):
    """The destination of messages: a queue or an event."""

    @property
    def bytes_max(self) -> int:
        """The largest body of a message."""

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        """See `core.port.Queue.publish`."""

    def once(self, key: str, message: Message) -> IdempotencyKey:
        """Return the idempotency key for a message; raise BadRequest."""

    def confirms(self, first_seq: int, count: int) -> bytes:
        """Return the frames that confirm `count` messages, one for each.

        A negative seq is that of the message that has the unique name of this one, which was not stored.
        """

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` when `ended` may have changed; return a function that ends this."""

    @property
    def ended(self) -> str:
        """Why the destination does not exist any more; "" if it does."""


class ToQueue:
    """A queue as the destination."""

    def __init__(
        self,
        queue: Queue,
        access: Callable[[], AuthorizedBroker],
        *,
        confirm_ids: bool = False,
        label: bytes = b"",
    ) -> None:
        """`access` returns what the client may do now. `label` has the first members of each confirm, which then has an
        id.
        """
        self._queue = queue
        self._access = access
        self._confirm_ids = confirm_ids or bool(label)
        self._label = label
        self.watch = queue.watch

    @property
    def bytes_max(self) -> int:
        return self._queue.options.max_message_size

    def once(self, key: str, message: Message) -> IdempotencyKey:
        return self._access().key(key, [message])

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        self._access().check_batches(self._queue.name, messages)
        self._queue.publish(messages, on_done, key=key, numbered=numbered)

    def confirms(self, first_seq: int, count: int) -> bytes:
        """See `Target`. With ids if they were asked for."""
        if first_seq < 0:
            msg_id = b'"id":"%b",' % self._queue.message_id(-first_seq).encode() if self._confirm_ids else b""
            return text_frame(b'{%b%b"duplicate":true}' % (self._label, msg_id))
        if not self._confirm_ids:
            return _CONFIRM * count
        ids = [self._queue.message_id(seq) for seq in range(first_seq, first_seq + count)]
        return b"".join([text_frame(b'{%b"id":"%b"}' % (self._label, name.encode())) for name in ids])

    @property
    def ended(self) -> str:
        return f"no such queue: {self._queue.name}" if self._queue.is_closed else ""


class ToEvent:
    """All queues that are bound to an event as the destination."""

    ended = ""

    def __init__(self, access: Callable[[], AuthorizedBroker], project: str, event: str, bytes_max: int) -> None:
        """`access` returns what the client may do now."""
        self.bytes_max = bytes_max
        self._access = access
        self._project = project
        self._event = event

    def once(self, _key: str, _message: Message) -> IdempotencyKey:
        raise BadRequest("an idempotency key works only for a queue; leave it out for an event")

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        assert key is None and numbered is None
        self._access().publish_event(self._event, messages, on_done, self._project)

    def confirms(self, _first_seq: int, count: int) -> bytes:
        """See `Target`. Never with ids, because each copy of a message has its own."""
        return _CONFIRM * count

    def watch(self, _fn: Callable[[], None]) -> Callable[[], None]:
        """See `Target`. Never calls `fn`, because an event has no end."""
        return lambda: None
