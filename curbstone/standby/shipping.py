"""A disk whose changes are added to a stream.

It wraps the disk of the data directory. A change of a name is made and added under the stream's lock; a write is made
first and then added. A failed call that has changed nothing adds nothing. If a failed call may have changed something,
the stream is invalidated.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from curbstone.core.disk import Disk, File
from curbstone.standby.frames import Kind, Sync
from curbstone.standby.scope import is_at_or_below, is_being_removed, is_shipped
from curbstone.standby.stream import Stream

if TYPE_CHECKING:
    from curbstone.standby.lease_keeper import LeaseKeeper

T = TypeVar("T")

UNCHANGED_ERRORS = frozenset(
    {
        *(errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG),
        *(errno.ENFILE, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS),
    }
)
"""Errors of calls that have changed nothing."""


class ShippedFile:
    """An open file whose changes are added to the stream. Implements `core.disk.File`."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, disk: ShippingDisk, path: str, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path: str | None = path
        """Its current path; None if its changes are not added any more."""

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def size(self) -> int:
        return self._file.size()

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self._file.write(offset, buffers)
        if self.path is not None:
            self._disk.stream.write(self.path, offset, buffers)

    def truncate(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._disk.on_error(error)
            raise
        if self.path is not None:
            self._disk.stream.add(Kind.TRUNCATE, self.path, size)

    def sync(self) -> None:
        if self.path is None:
            self._file.sync()
        else:
            self._disk.sync(self._file.sync, self.path, Sync.FILE)

    def close(self) -> None:
        self._file.close()
        self._disk.forget(self)


class ShippingDisk:
    """Implements `core.disk.Disk`."""

    def __init__(self, inner: Disk, stream: Stream) -> None:
        self.inner = inner
        self.stream = stream
        self.lease: LeaseKeeper | None = None
        """The lease of the server, if it is run with one."""
        self._open: dict[str, set[ShippedFile]] = {}
        """The open files, by path."""
        self._being_removed: set[str] = set()
        """The renamed directories of deleted queues, which are being removed."""
        self.has_failed = False
        """Whether a sync has failed, so that data read from the page cache may not be on the disk."""

    def open(self, path: str, *, create: bool = False) -> File:
        return self._opened(path, self.inner.open, create)

    def open_lasting(self, path: str, *, create: bool = False) -> File:
        return self._opened(path, self.inner.open_lasting, create)

    def _opened(self, path: str, opener: Callable[..., File], create: bool) -> File:
        if not is_shipped(path):
            return opener(path, create=create)
        with self.stream.lock:
            if create:
                file: File | None = None

                def make() -> None:
                    nonlocal file
                    file = opener(path, create=True)

                self._change(make, Kind.CREATE, path)
                assert file is not None
            else:
                file = opener(path)
            shipped = ShippedFile(self, path, file)
            self._open.setdefault(path, set()).add(shipped)
            return shipped

    def forget(self, file: ShippedFile) -> None:
        """Remove a closed file."""
        with self.stream.lock:
            there = self._open.get(file.path) if file.path is not None else None
            if there is not None:
                there.discard(file)
                if not there and file.path is not None:
                    del self._open[file.path]

    def list_dir(self, path: str) -> list[str]:
        return self.inner.list_dir(path)

    def on_error(self, error: OSError) -> None:
        """Invalidate the stream if a failed call may have changed something."""
        if not isinstance(error, FileNotFoundError | FileExistsError) and error.errno not in UNCHANGED_ERRORS:
            self.stream.invalidate()

    def _change(self, make: Callable[[], None], kind: Kind, path: str, payload: Sequence[bytes] = ()) -> None:
        """Change a name, and add the change to the stream."""
        try:
            make()
        except OSError as error:
            self.on_error(error)
            raise
        self.stream.add(kind, path, payload=payload)

    def make_dir(self, path: str) -> None:
        if is_shipped(path):
            with self.stream.lock:
                self._change(lambda: self.inner.make_dir(path), Kind.MKDIR, path)
        else:
            self.inner.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        if not is_shipped(old):
            assert not is_shipped(new), f"{old} is not replicated, but {new} is"
            self.inner.rename(old, new)
            return
        assert is_shipped(new) or is_being_removed(new), f"{old} is replicated, but {new} is not"
        with self.stream.lock:
            self._change(lambda: self._rename(old, new), Kind.RENAME, old, [new.encode()])

    def _rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)
        self._detach_files(new)
        for path in [path for path in self._open if is_at_or_below(path, old)]:
            there = new + path.removeprefix(old)
            moved = self._open.pop(path)
            for file in moved:
                file.path = there if is_shipped(there) else None
            if is_shipped(there):
                self._open[there] = moved
        if is_being_removed(new):
            self._being_removed.add(new)
        self.stream.renamed(old, new)

    def _detach_files(self, path: str) -> None:
        """Stop adding writes to the open files at and below a path, which was replaced or removed."""
        for each in [each for each in self._open if is_at_or_below(each, path)]:
            for file in self._open.pop(each):
                file.path = None

    def remove(self, path: str) -> None:
        if is_shipped(path):
            with self.stream.lock:
                self._change(lambda: self._remove(self.inner.remove, path), Kind.REMOVE, path)
        else:
            self.inner.remove(path)

    def remove_tree(self, path: str) -> None:
        if is_shipped(path) or path in self._being_removed:
            with self.stream.lock:
                self._change(lambda: self._remove(self._remove_all, path), Kind.RMTREE, path)
                self._being_removed.discard(path)
        else:
            self.inner.remove_tree(path)

    def _remove(self, remove: Callable[[str], None], path: str) -> None:
        remove(path)
        self._detach_files(path)
        self.stream.removed(path)

    def _remove_all(self, path: str) -> None:
        """Remove a tree. If that fails, part of it may be removed, whatever the error is."""
        try:
            self.inner.remove_tree(path)
        except FileNotFoundError:
            raise
        except OSError:
            self.stream.invalidate()
            raise

    def sync_dir(self, path: str) -> None:
        if not is_shipped(path):
            self.inner.sync_dir(path)
            return
        self.sync(lambda: self.inner.sync_dir(path), path, Sync.DIRECTORY)

    def sync_all(self, path: str) -> bool:
        return self.sync(lambda: self.inner.sync_all(path), path, Sync.EVERYTHING)

    def sync(self, make: Callable[[], T], path: str, what: Sync) -> T:
        """Make a sync, and add its start and its end to the stream."""
        number = self.stream.begin_sync(path, what)
        try:
            return make()
        except OSError:
            self.has_failed = True
            raise
        finally:
            self.stream.end_sync(number)

    def close(self) -> None:
        self.inner.close()
