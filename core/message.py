"""A message, and one delivery of it."""

from __future__ import annotations


class Message:
    """What a producer sends. Immutable once published.

    An adapter fills in `headers` (a block, see `core.headers`) and `body`, and, if the producer asked for them,
    `delay_ms`, `ttl_ms` and `groups`. The queue sets `seq`, `timestamp_ms` and `expires_ms` when it takes the message
    into a batch.
    """

    __slots__ = ("body", "delay_ms", "expires_ms", "groups", "headers", "seq", "timestamp_ms", "ttl_ms")

    def __init__(
        self, body: bytes, headers: bytes = b"", *, delay_ms: int = 0, ttl_ms: int = 0, groups: tuple[str, ...] = ()
    ) -> None:
        self.body = body
        self.headers = headers
        self.delay_ms = delay_ms
        """Milliseconds after publishing before it may be delivered; 0 for at once."""
        self.ttl_ms = ttl_ms
        """Milliseconds after publishing when it expires; 0 for the queue's own ttl."""
        self.groups = groups
        """The groups entitled to it; empty for the unnamed group and every declared one."""
        self.seq = 0
        self.timestamp_ms = 0
        self.expires_ms = 0
        """Engine time (see `core.host`) when it expires; 0 for never."""

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, {len(self.body)} bytes)"


class Delivery:
    """One hand-over of one message to one consumer."""

    __slots__ = ("handed_ms", "mature_ms", "message", "tries")

    def __init__(self, message: Message, tries: int, mature_ms: int) -> None:
        self.message = message
        self.tries = tries
        """Number of earlier deliveries of the message in this group; 0 on the first."""
        self.mature_ms = mature_ms
        """Wall-clock time when the message became ready."""
        self.handed_ms = 0
        """Engine time when it was delivered to a client that has to settle it; 0 before, and if no ack is expected."""

    @property
    def redelivered(self) -> bool:
        """Whether the message was handed out before."""
        return self.tries > 0

    def __repr__(self) -> str:
        return f"Delivery({self.message!r}, tries={self.tries})"
