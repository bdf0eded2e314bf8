"""A write and the sync after it as one value, for threads that do not run Python (see `core/disk_threads.c`).

Without such threads, or if something has to see each `write` and `sync` of a file, no such value is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

Buffers = Sequence[bytes | bytearray | memoryview]
EndWrite = Callable[[OSError | None, int, bool], None]


class DurableWrite:
    """A write that has begun. The caller makes the write and the sync, and calls `end`.

    If either fails, `File.write` and `File.sync` have to be called all the same: they fail in the same way, and their
    caller finds out what to do about it.
    """

    __slots__ = ("buffers", "end", "fd", "offset")

    def __init__(self, fd: int, offset: int, buffers: Buffers, end: EndWrite) -> None:
        self.fd = fd
        self.offset = offset
        self.buffers = buffers
        self.end = end
        """Called with the error, the microseconds that the sync took, and whether an error is that of the sync."""


@runtime_checkable
class DurableFile(Protocol):
    """A file that can make its writes such values."""

    def durable_write(self, offset: int, buffers: Buffers) -> DurableWrite | None:
        """Begin a write and a sync. Never blocks. Return None if that is not possible now: then call the two."""
