"""What one client sent and the engine has not confirmed: counted, so that a client is not read while it is too much.

Between the most that may be unconfirmed and half of it nothing changes, so reading does not go on and off with each
commit. Knows no sockets.
"""

from __future__ import annotations


class Unconfirmed:
    """Of one connection."""

    __slots__ = ("_bytes_max", "_count_max", "bytes", "count", "is_too_much")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self.is_too_much = False
        """Whether the client is not to be read."""

    def add(self, count: int, size: int) -> None:
        """So many more were handed to the engine."""
        self.count += count
        self.bytes += size
        if self.count > self._count_max or self.bytes > self._bytes_max:
            self.is_too_much = True

    def remove(self, count: int, size: int) -> bool:
        """The engine called back for so many; return whether the client may be read again, which it was not."""
        self.count -= count
        self.bytes -= size
        if self.is_too_much and self.count * 2 <= self._count_max and self.bytes * 2 <= self._bytes_max:
            self.is_too_much = False
            return True
        return False
