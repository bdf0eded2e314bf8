"""Counts the unconfirmed requests of one client, so that reading from the client stops above a limit.

Reading resumes at half of the limit, so that it is not switched on and off with each commit.
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
        """Whether the client must not be read."""

    def add(self, count: int, size: int) -> None:
        """Count requests that were passed to the engine."""
        self.count += count
        self.bytes += size
        if self.count > self._count_max or self.bytes > self._bytes_max:
            self.is_over_limit = True

    def remove(self, count: int, size: int) -> bool:
        """Count requests that the engine has confirmed or refused; return whether reading may resume now."""
        self.count -= count
        self.bytes -= size
        if self.is_over_limit and self.count * 2 <= self._count_max and self.bytes * 2 <= self._bytes_max:
            self.is_over_limit = False
            return True
        return False
