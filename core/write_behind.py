"""A disk that can write bytes later if they are durable elsewhere already.

The commits of many queues are made durable in one redo file (see `wal.sync_group`). Each commit belongs into a
segment, too, but it is not needed there yet, and writing many commits at once costs hardly more than writing one. So
these bytes are *deferred*: they stay in memory until their file is read, written, cut or synced, and are written
before that. The users of a file see no difference, except that each of these calls may fail because the deferred write
failed. Then the bytes stay deferred, and the next call tries again. Closing a file forgets them.

There is no limit here for how much is deferred. The caller that defers bytes has to limit them.

A queue that no restart finds again needs no sync at all. It gets the same disk without them (`unsynced`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from curbstone.core.disk import Disk, File
from curbstone.core.durable_write import DurableFile, DurableWrite


class WriteBehindFile:
    """An open file. Implements `File`; its methods may be called on several threads."""

    __slots__ = ("_disk", "_durable", "_file", "_late", "_late_at", "_late_bytes", "_lock", "path")

    def __init__(self, disk: WriteBehindDisk, path: str, file: File) -> None:
        self._disk = disk
        self._file = file
        self._durable = file if isinstance(file, DurableFile) else None
        self._late: list[bytes] = []
        """The deferred bytes, end to end from `_late_at` on."""
        self._late_at = 0
        self._late_bytes = 0
        self._lock = threading.Lock()
        self.path = path

    def defer(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Write buffers later, which are durable elsewhere. They must follow the bytes that are deferred already."""
        with self._lock:
            if not self._late:
                self._late_at = offset
                self._disk.late[self.path] = self
            assert offset == self._late_at + self._late_bytes
            self._late += buffers
            self._late_bytes += sum(map(len, buffers))

    def catch_up(self) -> None:
        if self._late:
            with self._lock:
                self._write_late()

    def _write_late(self) -> None:
        late = self._late
        if not late:  # another thread has written it meanwhile
            return
        try:
            self._file.write(self._late_at, [b"".join(late)])
        except OSError:
            if self._late is late:  # if not, the file was closed meanwhile, and the bytes are not needed
                raise
        self._forget_late()

    def _forget_late(self) -> None:
        self._late = []
        self._late_bytes = 0
        self._disk.late.pop(self.path, None)

    def read(self, offset: int, size: int) -> bytes:
        self.catch_up()
        return self._file.read(offset, size)

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        with self._lock:
            if self._late and offset == self._late_at + self._late_bytes:  # one call for both
                self._file.write(self._late_at, [b"".join(self._late), *buffers])
                self._forget_late()
                return
            self._write_late()
            self._file.write(offset, buffers)

    def sync(self) -> None:
        self.catch_up()
        if self._disk.syncs:
            self._file.sync()

    def durable_write(self, offset: int, buffers: Sequence[bytes]) -> DurableWrite | None:
        if self._durable is None or self._late or not self._disk.syncs:
            return None
        return self._durable.durable_write(offset, buffers)

    def truncate(self, size: int) -> None:
        self.catch_up()
        self._file.truncate(size)

    def size(self) -> int:
        self.catch_up()
        return self._file.size()

    def close(self) -> None:
        """See `File.close`. Deferred bytes are forgotten.

        This is called on the event loop, so it does not wait for the lock: a thread that hangs in the disk may have it.
        """
        self._forget_late()
        self._file.close()


class WriteBehindDisk:
    """The data directory. Implements `Disk`; files with deferred bytes look as if these had been written."""

    def __init__(self, disk: Disk) -> None:
        self.inner = disk
        """The disk that is written to in the end."""
        self.late: dict[str, WriteBehindFile] = {}
        """By path, the files with deferred bytes."""
        self.syncs = True
        """Whether directories and lasting files are synced on request."""

    def unsynced(self) -> WriteBehindDisk:
        """Return the same disk for what no restart finds again: syncs of lasting files and directories do nothing."""
        disk = WriteBehindDisk(self.inner)
        disk.late = self.late
        disk.syncs = False
        return disk

    def open(self, path: str, *, create: bool = False) -> File:
        late = self.late.get(path)
        if late is not None:
            late.catch_up()
        return self.inner.open(path, create=create)

    def open_lasting(self, path: str, *, create: bool = False) -> WriteBehindFile:
        """See `Disk.open_lasting`. Only writes to these files can be deferred. Open each path only once at a time."""
        return WriteBehindFile(self, path, self.inner.open_lasting(path, create=create))

    def catch_up(self) -> None:
        """Write all deferred bytes, for those who read the files past this object. Try all, raise the first failure."""
        failure: OSError | None = None
        for file in list(self.late.values()):
            try:
                file.catch_up()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def list_dir(self, path: str) -> list[str]:
        return self.inner.list_dir(path)

    def make_dir(self, path: str) -> None:
        self.inner.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        self.inner.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        if self.syncs:
            self.inner.sync_dir(path)

    def sync_all(self, path: str) -> bool:
        self.catch_up()
        return self.inner.sync_all(path)

    def close(self) -> None:
        self.inner.close()
