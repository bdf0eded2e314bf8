"""The disk that the engine writes to, as a port, and the real one.

All paths are relative to the data directory and use ``/``. All calls block; the engine makes them in jobs. They promise
no more than POSIX does: a write may be torn or lost until `File.sync` has returned. Creating, renaming or removing a
name may be undone until `Disk.sync_dir` has returned.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from curbstone.core.errors import DataDirectoryError
from curbstone.core.lasting_file import LastingFile
from curbstone.core.stats import COMMIT_US_BOUNDS, Histogram

OF_ONE_FILE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO),
        *(errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOENT),
    }
)
"""Errors that concern one file or directory only, so that a start can continue with the others."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a disk that is full."""


class File(Protocol):
    """An open file."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write all the buffers, one after the other, from `offset`."""

    def sync(self) -> None:
        """Make everything written durable (fdatasync). If this has failed once for a lasting file, it always does."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def close(self) -> None:
        """Close it; nothing is synced."""


class Disk(Protocol):
    """The data directory."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file to read and write; raise FileNotFoundError, or with `create` FileExistsError."""

    def open_lasting(self, path: str, *, create: bool = False) -> File:
        """Like `open`, for a file that stays open and is mostly idle. While it is idle, it may lose its descriptor.

        Its name must not change while it is open, because it may be opened again.
        """

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, in no order; raise OSError for a link."""

    def make_dir(self, path: str) -> None:
        """Make a directory; raise FileExistsError."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing `new` if it is a file."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it."""

    def sync_dir(self, path: str) -> None:
        """Make created, renamed and removed names in a directory durable."""

    def sync_all(self, path: str) -> bool:
        """Make everything durable that was written to the file system of a directory; return False if unsupported."""

    def close(self) -> None:
        """Give the directory back to other processes."""


def replace_file(disk: Disk, path: str, data: bytes) -> File:
    """Replace the file at `path`, if there is one, by one that holds `data`, durably; return the new file, open.

    Blocking. If this raises, a crash may leave either of the two.
    """
    fresh = f"{path}.new"
    with suppress(FileNotFoundError):
        disk.remove(fresh)
    file = disk.open(fresh, create=True)
    try:
        file.write(0, [data])
        file.sync()
        disk.rename(fresh, path)
        disk.sync_dir(path.rpartition("/")[0])
    except BaseException:
        file.close()
        raise
    return file


def file_contents(disk: Disk, path: str) -> bytes:
    with closing(disk.open(path)) as file:
        return file.read(0, file.size())


def file_bytes(disk: Disk, path: str) -> int:
    with closing(disk.open(path)) as file:
        return file.size()


def remove_file(disk: Disk, path: str) -> None:
    """Remove the file at `path`, and what a failed `replace_file` has left beside it, durably. Blocking."""
    for name in (path, f"{path}.new"):
        with suppress(FileNotFoundError):
            disk.remove(name)
    disk.sync_dir(path.rpartition("/")[0])


class SyncTimes:
    """How long syncs took, counted on any thread."""

    __slots__ = ("_lock", "took_us")

    def __init__(self) -> None:
        self.took_us = Histogram(COMMIT_US_BOUNDS)
        self._lock = threading.Lock()

    def add(self, took_us: int) -> None:
        with self._lock:
            self.took_us.add(took_us)


class OsFile:
    """A file of the operating system. Implements `File`."""

    def __init__(self, fd: int, times: SyncTimes | None = None) -> None:
        """`times` counts how long syncs take."""
        self._fd = fd
        self._times = times

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, offset)
        if written == total:
            return
        rest = memoryview(b"".join(buffers))
        while written < total:  # after a short write, the next one continues or says what is wrong
            written += os.pwrite(self._fd, rest[written:], offset + written)

    def sync(self) -> None:
        started_ns = time.monotonic_ns()
        os.fdatasync(self._fd)
        if self._times is not None:
            self._times.add((time.monotonic_ns() - started_ns) // 1000)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def detach(self) -> int:
        """Return the descriptor, which the caller has to close."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sync_path(path: Path | str) -> None:
    """Make the contents of a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory, and its parents, unless it exists; each new entry is durable when this returns."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in new:
        sync_path(each.parent)


class OsDisk:
    """A directory of the operating system, locked for this process while it is open. Implements `Disk`."""

    def __init__(self, root: Path, lasting_max: int = 1 << 30, *, is_shared: bool = False) -> None:
        """`lasting_max` is how many files of `open_lasting` may have a descriptor at a time.

        With `is_shared` the directory is not locked, because other processes use it, too.
        """
        self.root = root
        self.sync_times = SyncTimes()
        self._lasting_max = lasting_max
        self._lasting: OrderedDict[LastingFile, None] = OrderedDict()
        """The files that have a descriptor, the one used last at the end."""
        self._lasting_lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            make_directory(root)
            self._lock = -1 if is_shared else os.open(root / "lock", flags, 0o600)
        except OSError as error:
            raise DataDirectoryError(f"can't use the data directory {root}: {error.strerror}") from error
        if not is_shared:
            self._take_lock()

    def _take_lock(self) -> None:
        root = self.root
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            who = f"process {owner}" if owner else "another process"
            raise DataDirectoryError(f"the data directory {root} is in use by {who}") from error
        try:
            owner_line = f"{os.getpid()}\n".encode()
            os.pwrite(self._lock, owner_line, 0)  # overwrite the old line, because a full disk has no room for another
            os.ftruncate(self._lock, len(owner_line))
        except OSError as error:
            os.close(self._lock)
            raise DataDirectoryError(f"can't write to the data directory {root}: {error.strerror}") from error

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Make paths in errors relative, because clients may see them and must not learn where the data is."""
        try:
            yield
        except OSError as error:
            for name in ("filename", "filename2"):
                path = getattr(error, name)
                if isinstance(path, str) and path.startswith(f"{self.root}/"):
                    setattr(error, name, path.removeprefix(f"{self.root}/"))
            raise

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        return OsFile(self._open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0)), self.sync_times)

    def open_lasting(self, path: str, *, create: bool = False) -> LastingFile:
        fd = self.open(path, create=create).detach()
        file = LastingFile(self, path, fd, OsFile(fd, self.sync_times))
        with self._lasting_lock:
            self._lasting[file] = None
        self._keep_to_limit()
        return file

    def lend(self, file: LastingFile) -> OsFile:
        """Return a lasting file as an open one. It keeps its descriptor until every user has called `take_back`."""
        with self._lasting_lock:
            if file.is_closed:
                raise OSError(errno.EBADF, f"{file.path} is closed")
            file.users += 1
            if file.fd >= 0:
                self._lasting.move_to_end(file)
        try:
            if file.fd < 0:
                self._reopen(file)
                self._keep_to_limit()
            return file.opened
        except BaseException:
            self.take_back(file)
            raise

    def take_back(self, file: LastingFile) -> None:
        """End one use of a file that was lent."""
        fd = -1
        with self._lasting_lock:
            file.users -= 1
            if file.is_closed and not file.users:
                self._lasting.pop(file, None)
                fd, file.fd = file.fd, -1
        if fd >= 0:
            os.close(fd)

    def _reopen(self, file: LastingFile) -> None:
        fd = self.open(file.path).detach()
        with self._lasting_lock:
            if file.fd < 0:  # else another thread has opened it meanwhile
                file.fd, fd = fd, -1
                file.opened = OsFile(file.fd, self.sync_times)
                self._lasting[file] = None
        if fd >= 0:
            os.close(fd)

    def give_up(self, file: LastingFile) -> None:
        """Close a file, now or when its last user calls `take_back`."""
        fd = -1
        with self._lasting_lock:
            self._lasting.pop(file, None)
            file.is_closed = True
            if not file.users:
                fd, file.fd = file.fd, -1
        if fd >= 0:
            os.close(fd)

    def _keep_to_limit(self) -> None:
        while len(self._lasting) > self._lasting_max and self._close_idle():
            pass

    def _close_idle(self) -> bool:
        """Close the descriptor of the file that was used longest ago; return False if all are in use.

        Files with something to sync are closed last, because while the descriptor is open the system certainly reports
        a failed write.
        """
        with self._lasting_lock:
            idle = (file for file in self._lasting if not file.users)
            file = next((file for file in self._lasting if not file.users and not file.is_unsynced), next(idle, None))
            if file is None:
                return False
            del self._lasting[file]
            fd, file.fd = file.fd, -1
        os.close(fd)
        return True

    def _open(self, path: str, flags: int) -> int:
        """Open a file or directory. If no descriptor is left, take that of an idle lasting file."""
        while True:
            try:
                with self._inside():
                    return os.open(self._path(path), flags, 0o600)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._close_idle():
                    raise OSError(error.errno, "no descriptor is left for a file (see ulimit -n)") from error

    def list_dir(self, path: str) -> list[str]:
        fd = self._open_dir(path)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def make_dir(self, path: str) -> None:
        with self._inside():
            os.mkdir(self._path(path), 0o700)

    def rename(self, old: str, new: str) -> None:
        with self._inside():
            os.rename(self._path(old), self._path(new))

    def remove(self, path: str) -> None:
        with self._inside():
            os.unlink(self._path(path))

    def remove_tree(self, path: str) -> None:
        with self._inside():
            shutil.rmtree(self._path(path))

    def sync_dir(self, path: str) -> None:
        fd = self._open_dir(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> bool:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None
        if syncfs is None:
            return False
        fd = self._open_dir(path)
        try:
            if syncfs(fd):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(fd)
        return True

    def _open_dir(self, path: str) -> int:
        return self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
