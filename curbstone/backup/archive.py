"""Reads the tar archive of a backup, file by file.

It supports what `source.archive` writes: files, and pax headers with a path, a size and an offset. All other kinds of
entries are refused, because some of them take far more memory, time or disk in `tarfile` than the archive has bytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from curbstone.backup.files import OFFSET, PIECE_BYTES, BackupError

PAX_BYTES_MAX = 64 * 1024

_BLOCK = tarfile.BLOCKSIZE
_FILE = (tarfile.REGTYPE, tarfile.AREGTYPE)


class Reader(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes."""


class Content:
    """The content of one file of an archive. It is read before the next file."""

    def __init__(self, stream: Reader, size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = PIECE_BYTES, /) -> bytes:
        """Return up to so many bytes, empty at the end. Raise BackupError if the archive ends before."""
        data = self._stream.read(min(size, self._left)) if self._left else b""
        if self._left and not data:
            raise _ended()
        self._left -= len(data)
        return data

    def whole(self) -> bytes:
        """Return the rest. The caller has bounded the size of the file."""
        return b"".join(iter(self.read, b""))


class Entry(NamedTuple):
    """A file of an archive."""

    name: str
    size: int
    """The bytes that the archive has of it."""
    offset: int
    """The bytes before them, which the receiver has already."""
    content: Content


def entries(stream: Reader) -> Iterator[Entry]:
    """Yield the files of an archive. Raise BackupError if it is malformed, or has something that is not a file."""
    while (header := _header(stream)) is not None:
        pax: dict[str, str] = {}
        if header.type == tarfile.XHDTYPE:
            pax = _pax(_padded(stream, header.size))
            header = _header(stream)
            if header is None:
                raise _ended()
        name = pax.get("path", header.name)
        if header.type not in _FILE or any(key.startswith("GNU.sparse.") for key in pax):
            raise BackupError(f"it has {name[:200]!r}, which is not a file, or is sparse")
        size = _number(pax["size"]) if "size" in pax else header.size
        content = Content(stream, size)
        yield Entry(name, size, _number(pax.get(OFFSET, "0")), content)
        while content.read():
            pass
        _exactly(stream, -size % _BLOCK)


def _header(stream: Reader) -> tarfile.TarInfo | None:
    block = stream.read(_BLOCK)
    if not block.strip(b"\0"):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block + _exactly(stream, _BLOCK - len(block)), "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        raise BackupError(f"it is not an archive, or is truncated: {error}") from None
    if header.size < 0:
        raise BackupError(f"it has {header.name[:200]!r} with a negative size")
    return header


def _pax(data: bytes) -> dict[str, str]:
    """Return the records `length key=value` of a pax header."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        length = data[at : at + 20].partition(b" ")[0]
        end = at + _number(length.decode("ascii", "replace"))
        key, equals, value = data[at + len(length) + 1 : end].partition(b"=")
        if not equals or end > len(data) or not value.endswith(b"\n"):
            raise BackupError("it has a malformed pax header")
        found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "replace")
        at = end
    return found


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BackupError(f"it has a header with the bad number {text[:40]!r}")
    return int(text)


def _padded(stream: Reader, size: int) -> bytes:
    if size > PAX_BYTES_MAX:
        raise BackupError(f"it has a pax header of {size} bytes, more than {PAX_BYTES_MAX}")
    data = _exactly(stream, size)
    _exactly(stream, -size % _BLOCK)
    return data


def _exactly(stream: Reader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            raise _ended()
        data += piece
    return data


def _ended() -> BackupError:
    return BackupError("it is truncated")
