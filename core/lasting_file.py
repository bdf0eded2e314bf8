"""A file of the real disk that may lose its descriptor while it is idle, and never syncs again after a failed sync."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from curbstone.core.durable_write import DurableWrite

if TYPE_CHECKING:
    from curbstone.core.disk import OsDisk, OsFile


class LastingFile:
    """A file that is opened when it is used, and stays open while descriptors suffice. Implements `core.disk.File`."""

    __slots__ = (
        "_disk", "_failure", "_is_reported", "_syncing", "fd", "is_closed", "is_unsynced", "opened", "path", "users",
    )  # fmt: skip

    def __init__(self, disk: OsDisk, path: str, fd: int, opened: OsFile) -> None:
        self._disk = disk
        self.path = path
        self.fd = fd
        """The descriptor, or -1 while it has none."""
        self.opened = opened
        self.users = 0
        """How many calls are using the descriptor."""
        self.is_closed = False
        self.is_unsynced = False
        """Whether something was written since the last sync."""
        self._syncing = threading.Lock()
        self._failure: OSError | None = None
        self._is_reported = True
        """Whether `sync` has raised that failure."""

    def __enter__(self) -> OsFile:
        return self._disk.lend(self)

    def __exit__(self, *_error: object) -> None:
        self._disk.take_back(self)

    def read(self, offset: int, size: int) -> bytes:
        with self as file:
            return file.read(offset, size)

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        file = self._disk.lend(self)
        try:
            self.is_unsynced = True
            file.write(offset, buffers)
        finally:
            self._disk.take_back(self)

    def sync(self) -> None:
        with self._syncing:
            if not self._is_reported and self._failure is not None:
                self._is_reported = True
                raise self._failure
            if self._failure is not None:  # the system reports a failure once, and then takes lost data for written
                raise OSError(self._failure.errno, f"an earlier sync failed: {self._failure.strerror}")
            file = self._disk.lend(self)
            try:
                self.is_unsynced = False
                file.sync()
            except OSError as error:
                self._failure = error
                raise
            finally:
                self._disk.take_back(self)

    def durable_write(self, offset: int, buffers: Sequence[bytes]) -> DurableWrite | None:
        """See `core.durable_write`. Until its end, no other sync of the file begins."""
        if self._failure is not None or self.fd < 0 or not self._syncing.acquire(blocking=False):
            return None
        try:
            self._disk.lend(self)
        except OSError:  # it is closed: the two calls will say so
            self._syncing.release()
            return None
        self.is_unsynced = False
        return DurableWrite(self.fd, offset, buffers, self._end_durable_write)

    def _end_durable_write(self, error: OSError | None, sync_us: int, is_written: bool) -> None:
        if error is None:
            self._disk.sync_times.add(sync_us)
        elif is_written:
            self._failure = error
            self._is_reported = False
        else:
            self.is_unsynced = True
        self._syncing.release()
        self._disk.take_back(self)

    def truncate(self, size: int) -> None:
        with self as file:
            file.truncate(size)

    def size(self) -> int:
        with self as file:
            return file.size()

    def close(self) -> None:
        self._disk.give_up(self)
