"""Which connection publishes as which numbered producer to which queue: one at a time, whatever it speaks.

Two programs under one name would take each other's messages for repeats. So a later connection ends the earlier one,
which may also be a lost one of the same program that nobody has noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.errors import Conflict, CurbstoneError
from curbstone.core.names import QueueName

Key = tuple[bytes, QueueName]
End = Callable[[CurbstoneError], None]


class Producing:
    """Those of one connection, all of them kept in one `at_work`. `leave` when the connection is over."""

    def __init__(self, at_work: dict[Key, Producing], end: End) -> None:
        """`end` is called when another connection goes on in its place."""
        self._at_work = at_work
        self._end = end
        self._mine: set[Key] = set()

    @property
    def count(self) -> int:
        """How many producers, each counted once for each of its queues."""
        return len(self._mine)

    def holds(self, producer: bytes, queue: QueueName) -> bool:
        """Whether the producer has published to the queue over this connection."""
        return (producer, queue) in self._mine

    def claim(self, producer: bytes, queue: QueueName) -> None:
        """From now on the producer publishes to the queue over this connection."""
        key = producer, queue
        if key in self._mine:
            return
        self._mine.add(key)
        earlier = self._at_work.get(key)
        self._at_work[key] = self
        if earlier is not None:
            earlier._end(Conflict(f"another connection publishes to queue {queue} as the same producer"))

    def leave(self) -> None:
        """The connection is over."""
        for key in self._mine:
            if self._at_work.get(key) is self:
                del self._at_work[key]
        self._mine.clear()
