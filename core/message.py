"""A message, and one delivery of it."""

from __future__ import annotations

from collections.abc import Sequence

from curbstone.core.orders import Orders


class Message:
    """What a producer sends. Immutable once published.

    An adapter fills in `headers` (a block, see `core.headers`), `body`, and `orders`. The queue sets `seq`,
    `timestamp_ms` and `expires_ms` when it takes the message into a batch.
    """

    __slots__ = ("body", "expires_ms", "headers", "orders", "seq", "timestamp_ms")

    def __init__(self, body: bytes, headers: bytes = b"", orders: Orders | None = None) -> None:
        self.body = body
        self.headers = headers
        self.orders = orders
        """What the producer asks for beyond immediate delivery in every group; None for most messages."""
        self.seq = 0
        self.timestamp_ms = 0
        self.expires_ms = 0
        """Engine time (see `core.host`) when it expires; 0 for never."""

    @property
    def delay_ms(self) -> int:
        return self.orders.delay_ms if self.orders is not None else 0

    @property
    def ttl_ms(self) -> int:
        return self.orders.ttl_ms if self.orders is not None else 0

    @property
    def groups(self) -> tuple[str, ...]:
        return self.orders.groups if self.orders is not None else ()

    @property
    def level(self) -> int:
        return self.orders.level if self.orders is not None else 0

    @property
    def is_duplicate(self) -> bool:
        """Whether it was published, and left out because another message, that of `seq`, has its unique name."""
        return self.seq > 0 and not self.timestamp_ms

    def __repr__(self) -> str:
        return f"Message(seq={self.seq}, {len(self.body)} bytes)"


def flags_of(messages: Sequence[Message]) -> int:
    """Return the flags of the orders of all messages, joined by `or`; of levels that says only if there is one."""
    flags = 0
    for message in messages:
        if message.orders is not None:
            flags |= message.orders.flags
    return flags


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
        return self.tries > 0

    def __repr__(self) -> str:
        return f"Delivery({self.message!r}, tries={self.tries})"
