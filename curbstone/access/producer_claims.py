"""Which connection publishes as which numbered producer to which queue: one at a time, over all protocols.

If two programs used the same name, each one's messages would be taken for repeats of the other's. So a later connection
ends the earlier one. The earlier one may also be a lost connection of the same program, whose loss was not noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.errors import Conflict, CurbstoneError
from curbstone.core.names import QueueName

Key = tuple[bytes, QueueName]
End = Callable[[CurbstoneError], None]


class ProducerClaims:
    """The numbered producers of one connection. Call `leave` when it is over."""

    def __init__(self, at_work: dict[Key, ProducerClaims], end: End) -> None:
        """`at_work` has those of all connections. `end` is called when another connection takes one over."""
        self._at_work = at_work
        self._end = end
        self._mine: set[Key] = set()

    @property
    def count(self) -> int:
        """The number of producers; each counts once for each of its queues."""
        return len(self._mine)

    def holds(self, producer: bytes, queue: QueueName) -> bool:
        """Return whether this connection has claimed the producer for the queue."""
        return (producer, queue) in self._mine

    def claim(self, producer: bytes, queue: QueueName) -> None:
        """Claim a producer for this connection and queue, and end the connection that had it before."""
        key = producer, queue
        if key in self._mine:
            return
        self._mine.add(key)
        earlier = self._at_work.get(key)
        self._at_work[key] = self
        if earlier is not None:
            earlier._end(Conflict(f"another connection publishes to queue {queue} as the same producer"))

    def leave(self) -> None:
        """Release all producers: the connection is over."""
        for key in self._mine:
            if self._at_work.get(key) is self:
                del self._at_work[key]
        self._mine.clear()
