"""A disk on which some writes are late: of bytes that are durable elsewhere already.

The commits of many queues are made durable in one redo file (see `writing.committer`). Each belongs into a file of its
own, too, but nobody needs it there yet, and a write of many commits costs hardly more than that of one. So such bytes
are *deferred*: they stay in memory until somebody reads, writes, cuts or syncs their file, and are written first then.
Whoever uses the file sees no difference, but that each of these calls may fail because the late write did; then the
bytes stay deferred, and the next call tries again. Closing a file forgets them.

How much is deferred is for those to bound who say where it is durable.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from curbstone.core.disk import Disk, File


class WriteBehindFile:
    """An open file. Implements `File`; its methods may be called on several threads."""

    __slots__ = ("_disk", "_file", "_late", "_late_at", "_late_bytes", "_lock", "path")

    def __init__(self, disk: WriteBehindDisk, path: str, file: File) -> None:
        self._disk = disk
        self._file = file
        self._late: list[bytes] = []
        """What is deferred: the bytes from `_late_at` on, end to end."""
        self._late_at = 0
        self._late_bytes = 0
        self._lock = threading.Lock()
        self.path = path

    def defer(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Have buffers, which are durable elsewhere, written later; they lie behind what is deferred already."""
        with self._lock:
            if not self._late:
                self._late_at = offset
                self._disk.late[self.path] = self
            assert offset == self._late_at + self._late_bytes
            self._late += buffers
            self._late_bytes += sum(map(len, buffers))

    def catch_up(self) -> None:
        """Write what is deferred."""
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
            if self._late is late:  # else the file was closed meanwhile
                raise
        self._forget_late()

    def _forget_late(self) -> None:
        self._late = []
        self._late_bytes = 0
        self._disk.late.pop(self.path, None)

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        self.catch_up()
        return self._file.read(offset, size)

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """See `File.write`."""
        with self._lock:
            if self._late and offset == self._late_at + self._late_bytes:  # both in one call
                self._file.write(self._late_at, [b"".join(self._late), *buffers])
                self._forget_late()
                return
            self._write_late()
            self._file.write(offset, buffers)

    def sync(self) -> None:
        """See `File.sync`."""
        self.catch_up()
        self._file.sync()

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self.catch_up()
        self._file.truncate(size)

    def size(self) -> int:
        """See `File.size`."""
        self.catch_up()
        return self._file.size()

    def close(self) -> None:
        """See `File.close`; what is deferred is forgotten.

        This is called on the event loop, so it does not wait for the lock: whoever has that may be stuck in a disk that
        hangs.
        """
        self._forget_late()
        self._file.close()


class WriteBehindDisk:
    """The data directory. Implements `Disk`; what it says of a file that has something deferred is as if it had not."""

    def __init__(self, disk: Disk) -> None:
        self.inner = disk
        """The disk that is written to in the end."""
        self.late: dict[str, WriteBehindFile] = {}
        """The files of which something is deferred, by path."""

    def open(self, path: str, *, create: bool = False) -> File:
        """See `Disk.open`."""
        late = self.late.get(path)
        if late is not None:
            late.catch_up()
        return self.inner.open(path, create=create)

    def open_lasting(self, path: str, *, create: bool = False) -> WriteBehindFile:
        """See `Disk.open_lasting`. Only what is written to these can be deferred; of each there is one at a time."""
        return WriteBehindFile(self, path, self.inner.open_lasting(path, create=create))

    def catch_up(self) -> None:
        """Write all that is deferred, for those who look at the files without this object; raise the first failure."""
        failure: OSError | None = None
        for file in list(self.late.values()):
            try:
                file.catch_up()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def list_dir(self, path: str) -> list[str]:
        """See `Disk.list_dir`."""
        return self.inner.list_dir(path)

    def make_dir(self, path: str) -> None:
        """See `Disk.make_dir`."""
        self.inner.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`."""
        self.inner.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`."""
        self.inner.sync_dir(path)

    def sync_all(self, path: str) -> bool:
        """See `Disk.sync_all`."""
        self.catch_up()
        return self.inner.sync_all(path)

    def close(self) -> None:
        """See `Disk.close`."""
        self.inner.close()
