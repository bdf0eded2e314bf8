"""Claims of numbered producers: one connection at a time publishes as a producer to a queue, over all protocols.

If two programs used the same name, each one's messages would be taken for repeats of the other's. So a new claim ends
the connection with the earlier one, which may also be a lost connection of the same program.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.errors import Conflict, CurbstoneError
from curbstone.core.names import QueueName

Key = tuple[bytes, QueueName]
End = Callable[[CurbstoneError], None]


class ProducerClaims:
    """The numbered producers of one connection. Call `release` when it has ended."""

    def __init__(self, claims: dict[Key, ProducerClaims], end: End) -> None:
        """`claims` has those of all connections. `end` is called when another connection takes one over."""
        self._claims = claims
        self._end = end
        self._mine: set[Key] = set()

    @property
    def count(self) -> int:
        """The number of claims; a producer has one for each of its queues."""
        return len(self._mine)

    def holds(self, producer: bytes, queue: QueueName) -> bool:
        """Return whether this connection has claimed the producer for the queue."""
        return (producer, queue) in self._mine

    def claim(self, producer: bytes, queue: QueueName) -> None:
        """Claim a producer for a queue, and end the connection with the earlier claim."""
        key = producer, queue
        if key in self._mine:
            return
        self._mine.add(key)
        earlier = self._claims.get(key)
        self._claims[key] = self
        if earlier is not None:
            earlier._end(Conflict(f"another connection publishes to queue {queue} as the same producer"))

    def release(self) -> None:
        """Release all claims, because the connection has ended."""
        for key in self._mine:
            if self._claims.get(key) is self:
                del self._claims[key]
        self._mine.clear()
