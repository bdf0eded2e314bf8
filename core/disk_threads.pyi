"""Threads that write and sync files without the interpreter. Optional: only some builds have it (see setup.py)."""

from collections.abc import Sequence
from typing import Any

class DiskThreads:
    """Its methods are called on one thread, the event loop's."""

    def __new__(cls, threads_max: int) -> DiskThreads:
        """No thread is started before it is needed."""

    def fileno(self) -> int:
        """Return an eventfd that is readable when `finished` has something to return."""

    def submit(self, token: Any, fd: int, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write the buffers to the file, one after the other, from `offset` on, then sync the file."""

    def finished(self) -> list[tuple[Any, int, bool, int]]:
        """Return those that have ended: (token, errno or 0, whether all was written, µs that the sync took)."""

    def close(self) -> None:
        """Wait until all that was submitted has ended, and end the threads."""
