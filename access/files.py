"""Files of who may come in: replaced whole and synced, or added to, and never readable by others.

All of it blocks; the caller runs it on a thread, or before anybody is connected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
FILE_BYTES_MAX = 64 * 1024 * 1024


def make_directory(path: Path) -> None:
    """Make a directory that is ours alone, if it is not there."""
    with suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY_MODE)
        _sync_directory(path.parent)


def read_trusted(path: Path) -> bytes:
    """Return the contents of a file that people write; raise PermissionError where others than its owner may, too.

    A link is followed: a mounted secret is one.
    """
    return _read(path, 0)


def read_ours(path: Path, directory: Path) -> bytes:
    """Return the contents of a file of a data directory; raise PermissionError where it can be another's.

    Whoever may write to that directory could put one there. No link is followed.
    """
    return _read(path, os.O_NOFOLLOW, (0, os.geteuid(), directory.stat().st_uid))


def _read(path: Path, flags: int, owners: Sequence[int] = ()) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise PermissionError(0, "it is not a regular file")
        if owners and facts.st_uid not in owners:
            raise PermissionError(0, "it is another user's")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(0, "others than its owner may write it; chmod go-w")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(FILE_BYTES_MAX)
    finally:
        os.close(descriptor)


def version_of(path: Path) -> tuple[int, int, int]:
    """Return what is another after a file was changed or replaced; zeros where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return (0, 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def replace(path: Path, data: bytes) -> None:
    """Replace a file, durably; a crash leaves the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(fresh, path)
    _sync_directory(path.parent)


def create(path: Path, data: bytes) -> None:
    """Make a file that must not be there yet, durably; raise FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path.parent)


def append(path: Path, data: bytes, bytes_max: int, files_max: int) -> None:
    """Add to a file; one that is full becomes `path.1`, that one `path.2` and so on, and the oldest goes."""
    with suppress(FileNotFoundError):
        if path.stat().st_size + len(data) > bytes_max:
            for number in range(files_max - 1, 0, -1):
                older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
                with suppress(FileNotFoundError):
                    os.rename(older, path.with_name(f"{path.name}.{number}"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read_tail(path: Path, bytes_max: int) -> bytes:
    """Return the end of a file, b"" where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(os.fstat(descriptor).st_size - bytes_max, 0))
        return file.read(bytes_max)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
