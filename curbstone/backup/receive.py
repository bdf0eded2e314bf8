"""Writes a received backup to disk, and reads a backup. All checksums are verified on the way.

A directory is written under a temporary name, and renamed when it is on disk and correct. So a backup that exists under
its name is complete, even after a crash.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from curbstone.backup.archive import Reader, entries
from curbstone.backup.files import (
    DATA,
    INDEX,
    PIECE_BYTES,
    SUMS,
    BackupError,
    TargetTaken,
    check_size,
    checked_path,
    decode_index,
    decode_sums,
    encode_sums,
)
from curbstone.core.disk import sync_path

PARTIAL = ".partial"


class Unpacked(NamedTuple):
    """The contents of a backup."""

    data: Path
    """A copy of the data directory."""
    facts: dict[str, object]
    """Its index."""


def receive(stream: Reader, target: Path, since: Path | None = None) -> dict[str, object]:
    """Write an archive as a directory and return its index.

    Raise BackupError, TargetTaken or OSError, and leave no files then. `since` is an earlier backup that this one
    continues. Unchanged files are hard links to it, or copies.
    """
    with _made(target) as partial:
        sums = extract(stream, partial, since)
        while stream.read(PIECE_BYTES):
            pass  # at the end of the reply the server has finished it, and another backup can begin
        _write(partial / SUMS, encode_sums(sums))
        index = decode_index((partial / INDEX).read_bytes())
    return index


def extract(stream: Reader, into: Path, since: Path | None = None) -> dict[str, str]:
    """Write the files of an archive below a directory, durably. Return their checksums after verifying them."""
    found: dict[str, str] = {}
    sums: dict[str, str] | None = None
    for entry in entries(stream):
        name = checked_path(entry.name)
        if name in found:
            raise BackupError(f"it has {name} twice")
        if name in (SUMS, INDEX):
            check_size(name, entry.size, found)
        if name == SUMS:
            sums = decode_sums(entry.content.whole())
            continue
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.offset and entry.size == 0 and since is not None:
            found[name] = _take_whole(since / name, path, entry.offset)
        else:
            found[name] = _take(entry.content, path, since / name if since and entry.offset else None, entry.offset)
    if sums is None:
        raise BackupError(f"it ends before its {SUMS}: the server could not send all of it")
    if INDEX not in found:
        raise BackupError(f"it has no {INDEX}")
    _compare(sums, found)
    _sync_tree(into)
    return found


def _take_whole(old: Path, path: Path, size: int) -> str:
    """Reuse an unchanged file of the earlier backup; return its checksum."""
    digest = digest_of(old, size)
    if old.stat().st_size == size:
        with suppress(OSError):  # on another file system, or on one without hard links
            os.link(old, path)
            return digest
    return _take(io.BytesIO(), path, old, size)


def _take(content: Reader, path: Path, old: Path | None, offset: int) -> str:
    """Write a file, its beginning from the earlier backup and the rest from the archive; return its checksum."""
    hashed = hashlib.sha256()
    with path.open("xb") as file:
        if old is not None:
            with old.open("rb") as before:
                left = offset
                while left and (piece := before.read(min(PIECE_BYTES, left))):
                    hashed.update(piece)
                    file.write(piece)
                    left -= len(piece)
        while piece := content.read(PIECE_BYTES):
            hashed.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hexdigest()


def digest_of(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `size` bytes."""
    hashed = hashlib.sha256()
    left = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            hashed.update(piece)
            left -= len(piece)
    return hashed.hexdigest()


def _compare(sums: dict[str, str], found: dict[str, str]) -> None:
    for name in sorted(sums.keys() | found.keys()):
        if name not in found:
            raise BackupError(f"{name} is missing")
        if name not in sums:
            raise BackupError(f"{name} is not in {SUMS}")
        if sums[name] != found[name]:
            raise BackupError(f"{name} is damaged: its checksum does not match")


def present_parts(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and checksum of each file of a backup, by name, after verifying all checksums."""
    sums = verify(folder)
    return {name: ((folder / name).stat().st_size, digest) for name, digest in sums.items() if name != INDEX}


def verify(folder: Path) -> dict[str, str]:
    """Verify the checksums of a backup, and return them. Raise BackupError."""
    names = [INDEX, *(path.relative_to(folder).as_posix() for path in (folder / DATA).rglob("*") if path.is_file())]
    try:
        for name in (SUMS, INDEX):
            check_size(name, (folder / name).stat().st_size, names)
        sums = decode_sums((folder / SUMS).read_bytes())
        decode_index((folder / INDEX).read_bytes())
    except FileNotFoundError as error:
        raise BackupError(f"it has no {Path(str(error.filename)).name}, so it is not a backup") from None
    _compare(sums, {name: digest_of(folder / name) for name in names})
    return sums


@contextmanager
def unpacked(source: str, beside: Path) -> Iterator[Unpacked]:
    """Yield a copy of the contents of a backup, in a directory next to `beside`. The caller may change or move it."""
    work = beside.with_name(beside.name + PARTIAL)
    shutil.rmtree(work, ignore_errors=True)
    with private_files():
        work.mkdir(parents=True)
        try:
            _unpack(source, work)
            index = decode_index((work / INDEX).read_bytes())
            (work / DATA).mkdir(exist_ok=True)
            yield Unpacked(work / DATA, index)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _unpack(source: str, work: Path) -> None:
    path = Path(source)
    if source == "-":
        import sys

        extract(sys.stdin.buffer, work)
    elif path.is_dir():
        sums = verify(path)
        for name in sums:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path / name, work / name)
        _compare(sums, {name: digest_of(work / name) for name in sums})
        _sync_tree(work, files=True)
    else:
        with path.open("rb") as stream:
            extract(stream, work)


@contextmanager
def private_files() -> Iterator[None]:
    """Create files in the block that only this process's user can read, as a server does."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def check_free(target: Path) -> None:
    """Raise TargetTaken if the target of a backup exists."""
    if target.exists():
        raise TargetTaken(f"{target} exists already; name a new one")


@contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Yield a directory that is renamed to `target` if the block succeeds, and removed if it fails."""
    check_free(target)
    partial = target.with_name(target.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    with private_files():
        partial.mkdir(parents=True)
        try:
            yield partial
            _sync_tree(partial)
            partial.rename(target)
            sync_path(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(folder: Path, *, files: bool = False) -> None:
    """Make the names in a directory and below it durable, and with `files` also the contents of the files."""
    for path in folder.rglob("*"):
        if path.is_dir() or files:
            sync_path(path)
    sync_path(folder)


class Tee:
    """Reads a stream, and writes every byte of it to another on the way."""

    def __init__(self, stream: Reader, out: IO[bytes]) -> None:
        self._stream = stream
        self._out = out

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes."""
        data = self._stream.read(size)
        self._out.write(data)
        return data


def pass_on(stream: Reader, out: IO[bytes]) -> dict[str, object]:
    """Copy an archive to `out`, and return its index.

    Raise BackupError if it is incomplete, or does not match its checksums.
    """
    tee = Tee(stream, out)
    found: dict[str, str] = {}
    sums: dict[str, str] | None = None
    index = b""
    for entry in entries(tee):
        if entry.name in (SUMS, INDEX):
            check_size(entry.name, entry.size, found)
        if entry.name == SUMS:
            sums = decode_sums(entry.content.whole())
        elif entry.name == INDEX:
            index = entry.content.whole()
            found[INDEX] = hashlib.sha256(index).hexdigest()
        else:
            hashed = hashlib.sha256()
            while piece := entry.content.read():
                hashed.update(piece)
            found[entry.name] = hashed.hexdigest()
    while tee.read(PIECE_BYTES):
        pass
    if sums is None:
        raise BackupError(f"it ends before its {SUMS}: the server could not send all of it")
    _compare(sums, found)
    return decode_index(index)
