"""Counts what one client has sent and the engine has not confirmed, so that a client with too much of it is not read.

Once there is too much, reading stays off until no more than half of the maximum is left, so that it is not switched
on and off with each commit. Has nothing to do with sockets.
"""

from __future__ import annotations


class InFlight:
    """The unconfirmed requests of one connection."""

    __slots__ = ("_bytes_max", "_count_max", "bytes", "count", "is_over_limit")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self.is_over_limit = False
        """Whether so much is unconfirmed that the client must not be read."""

    def add(self, count: int, size: int) -> None:
        """Count what was handed to the engine."""
        self.count += count
        self.bytes += size
        if self.count > self._count_max or self.bytes > self._bytes_max:
            self.is_over_limit = True

    def remove(self, count: int, size: int) -> bool:
        """Count what the engine called back for; return True if the client may be read again because of it."""
        self.count -= count
        self.bytes -= size
        if self.is_over_limit and self.count * 2 <= self._count_max and self.bytes * 2 <= self._bytes_max:
            self.is_over_limit = False
            return True
        return False
