"""The unfinished messages of all connections of one server, bounded together. Knows no sockets.

Each connection has a bound of its own, but many connections together could still fill the memory with messages whose
last byte never comes. So the sizes of large unfinished messages are added up. If the sum is too large, the connection
whose message was begun the longest ago is ended. A client that sends its messages without delay is hardly ever that
one.
"""

from __future__ import annotations

from typing import Protocol, Self

from curbstone.net.limits import UNFINISHED_BYTES_MAX

SMALL_BYTES = 64 * 1024
"""Messages up to this size are not counted."""


class Holder(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Drop the unfinished message and end the connection."""


class Unfinished:
    """The sum of the sizes; at most `bytes_max`, which must be more than one connection may hold."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[Holder, int] = {}
        self.bytes = 0

    @classmethod
    def for_messages(cls, bytes_max: int) -> Self:
        """Return the sum for messages of at most `bytes_max` each, with room for at least two of them."""
        return cls(max(UNFINISHED_BYTES_MAX, 2 * bytes_max))

    def note(self, holder: Holder, size: int, began_anew: bool) -> None:
        """Note how many unfinished bytes a connection holds, and whether they belong to another message than before."""
        sizes = self._sizes
        if size <= SMALL_BYTES:
            if sizes:
                self.bytes -= sizes.pop(holder, 0)
            return
        before = sizes.get(holder, 0)
        if began_anew and before:
            del sizes[holder]  # so that it is inserted again at the end: the dict is in the order of age
        sizes[holder] = size
        self.bytes += size - before
        while self.bytes > self._bytes_max:
            oldest = next(iter(sizes))
            self.bytes -= sizes.pop(oldest)
            oldest.evict()
