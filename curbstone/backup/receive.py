"""Writing a backup down, and reading one back: every byte is compared with its checksum on the way.

A directory is made under another name and gets its own when all of it is on disk and correct. So a backup that is
there under its name is whole, whatever was killed when.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from curbstone.backup.files import (
    DATA,
    INDEX,
    OFFSET,
    PIECE_BYTES,
    SUMS,
    BackupError,
    checked_path,
    decode_index,
    decode_sums,
    encode_sums,
)

PARTIAL = ".partial"


class Reader(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes."""


def receive(stream: Reader, target: Path, since: Path | None = None) -> dict[str, object]:
    """Write an archive as a directory and return its index; raise BackupError or OSError, and leave nothing then.

    `since` is the backup it goes on from: what did not change is linked to it, or copied from there.
    """
    with _made(target) as partial:
        sums = extract(stream, partial, since)
        _write(partial / SUMS, encode_sums(sums))
        index = decode_index((partial / INDEX).read_bytes())
    return index


def extract(stream: Reader, into: Path, since: Path | None = None) -> dict[str, str]:
    """Write the files of an archive below a directory, durably; return their checksums, which they have."""
    found: dict[str, str] = {}
    sums: dict[str, str] | None = None
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for entry in archive:
                content = archive.extractfile(entry)
                if not entry.isreg() or content is None:
                    raise BackupError(f"it has {entry.name[:200]!r}, which is not a file")
                name = checked_path(entry.name)
                if name == SUMS:
                    sums = decode_sums(content.read())
                    continue
                offset = int(entry.pax_headers.get(OFFSET, "0"))
                path = into / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if offset and entry.size == 0 and since is not None:
                    found[name] = _take_whole(since / name, path, offset)
                else:
                    found[name] = _take(content, path, since / name if since and offset else None, offset)
    except tarfile.TarError as error:
        raise BackupError(f"it is no archive, or ends in the middle: {error}") from None
    if sums is None:
        raise BackupError(f"it ends before its {SUMS}: the server could not send all of it")
    _compare(sums, found)
    _sync_tree(into)
    return found


def _take_whole(old: Path, path: Path, size: int) -> str:
    """Use a file of the backup before, which has not changed."""
    digest = digest_of(old, size)
    if old.stat().st_size == size:
        with suppress(OSError):  # another file system, or one without hard links
            os.link(old, path)
            return digest
    return _take(io.BytesIO(), path, old, size)


def _take(content: IO[bytes], path: Path, old: Path | None, offset: int) -> str:
    """Write a file: the beginning from an older one, the rest as it comes."""
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
    """Return the SHA-256 of a file, or of its first bytes."""
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


def had_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Return what a backup has, by name, after comparing all of it with its checksums."""
    sums = verify(folder)
    return {name: ((folder / name).stat().st_size, digest) for name, digest in sums.items() if name != INDEX}


def verify(folder: Path) -> dict[str, str]:
    """Return the checksums of a backup, which its files have; raise BackupError."""
    try:
        sums = decode_sums((folder / SUMS).read_bytes())
        decode_index((folder / INDEX).read_bytes())
    except FileNotFoundError as error:
        raise BackupError(f"it has no {Path(str(error.filename)).name}, so it is no backup") from None
    names = [INDEX, *(path.relative_to(folder).as_posix() for path in (folder / DATA).rglob("*") if path.is_file())]
    _compare(sums, {name: digest_of(folder / name) for name in names})
    return sums


@contextmanager
def unpacked(source: str, beside: Path) -> Iterator[Path]:
    """Give the data directory of a backup, a new copy that may be changed or moved away, in a directory `beside`."""
    work = beside.with_name(beside.name + PARTIAL)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700, parents=True)
    try:
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
        decode_index((work / INDEX).read_bytes())
        (work / DATA).mkdir(exist_ok=True)
        yield work / DATA
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _made(target: Path) -> Iterator[Path]:
    """Give a directory that gets the name `target` when all went well, and is removed otherwise."""
    if target.exists():
        raise BackupError(f"{target} is there already")
    partial = target.with_name(target.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    try:
        yield partial
        _sync_tree(partial)
        partial.rename(target)
        sync_dir(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_tree(folder: Path, *, files: bool = False) -> None:
    """Make the names in a directory and all below it durable, and what is in the files if that is not known."""
    for path in folder.rglob("*"):
        if path.is_dir() or files:
            sync_dir(path)
    sync_dir(folder)


def sync_dir(path: Path) -> None:
    """Make a directory's names, or a file, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Tee:
    """Reads a stream, and writes all of it down as it was read."""

    def __init__(self, stream: Reader, out: IO[bytes]) -> None:
        self._stream = stream
        self._out = out

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes."""
        data = self._stream.read(size)
        self._out.write(data)
        return data


def pass_on(stream: Reader, out: IO[bytes]) -> None:
    """Write an archive on, and raise BackupError where it is not whole or not what its checksums say."""
    tee = Tee(stream, out)
    found: dict[str, str] = {}
    sums: dict[str, str] | None = None
    try:
        with tarfile.open(fileobj=tee, mode="r|") as archive:  # type: ignore[call-overload]
            for entry in archive:
                content = archive.extractfile(entry)
                assert content is not None
                if entry.name == SUMS:
                    sums = decode_sums(content.read())
                else:
                    hashed = hashlib.sha256()
                    while piece := content.read(PIECE_BYTES):
                        hashed.update(piece)
                    found[entry.name] = hashed.hexdigest()
    except tarfile.TarError as error:
        raise BackupError(f"it is no archive, or ends in the middle: {error}") from None
    while tee.read(PIECE_BYTES):
        pass
    if sums is None:
        raise BackupError(f"it ends before its {SUMS}: the server could not send all of it")
    _compare(sums, found)
