"""Reads access files, and writes those that are not part of the server's state, readable only by the server's user.

All functions block. The caller runs them in a thread, or before the first client connects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FILE_MODE = 0o600
FILE_BYTES_MAX = 64 * 1024 * 1024


def read_trusted(path: Path) -> bytes:
    """Return the contents of a file of the operator; raise PermissionError if users other than its owner may write it.

    Links are followed, because a mounted secret is a link.
    """
    return _read(path, 0)


def read_ours(path: Path, directory: Path) -> bytes:
    """Return the contents of a file in a data directory; raise PermissionError if another user may have written it.

    No link is followed.
    """
    return _read(path, os.O_NOFOLLOW, (0, os.geteuid(), directory.stat().st_uid))


def _read(path: Path, flags: int, owners: Sequence[int] = ()) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise PermissionError(0, "it is not a regular file")
        if owners and facts.st_uid not in owners:
            raise PermissionError(0, "another user owns it")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(0, "users other than its owner may write it; run chmod go-w on it")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(FILE_BYTES_MAX)
    finally:
        os.close(descriptor)


def version_of(path: Path) -> tuple[int, int, int]:
    """Return a value that changes when a file is changed or replaced; zeros if the file does not exist."""
    try:
        facts = path.stat()
    except OSError:
        return (0, 0, 0)
    return (facts.st_mtime_ns, facts.st_size, facts.st_ino)


def create(path: Path, data: bytes) -> None:
    """Create a file and sync it; raise FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path.parent)


def append(path: Path, data: bytes, bytes_max: int, files_max: int) -> None:
    """Append to a file. A full file is first rotated to `path.1`, that one to `path.2`, and so on."""
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
    """Return the end of a file, or b"" if the file does not exist."""
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
