"""The bytes of a redo file: what the commits of several queues write to their segments, under one checksum.

Pure: no file, no clock. A redo file is a header, followed by records, end to end. Behind the last record there are
zeros, or records of an earlier life of the file. Numbers are little-endian. ::

    header   magic "CURBREDO", format, salt, crc
    record   crc, magic, length, number, count of parts;
             then for each part: queue uid, segment number, salt of the segment, offset, bytes;
             then the bytes of all parts

A record's crc covers everything after the crc itself. It starts from the file's salt, which is new in each life of the
file, so records of an earlier life never pass for records of this one. A part says which bytes lie at one place in one
life of a segment file. Nothing else is ever written at that place, so a part can be written again, once or many times,
without changing anything that is good. `docs/journal.md` says when these files are written and read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

REDO_FORMAT = 1
REDO_MAGIC = b"CURBREDO"
RECORD_MAGIC = 0x4F444552  # "REDO" on disk
RECORD_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "little")
REDO_PREFIX = "redo."

_HEADER = struct.Struct("<8sIII")
HEADER_BYTES = _HEADER.size
_RECORD = struct.Struct("<IIIII")
RECORD_BYTES = _RECORD.size
_PART = struct.Struct("<QQIQI")
PART_BYTES = _PART.size


class Part(NamedTuple):
    """The place of some bytes: `size` of them at `offset` in segment `number` of queue `uid`, in the life `salt`."""

    uid: int
    number: int
    salt: int
    offset: int
    size: int


class Redo(NamedTuple):
    """A part as it is read back."""

    part: Part
    data: memoryview


class UnknownRedoFormat(Exception):
    """The file was written by a newer version of this program."""

    def __init__(self, version: int) -> None:
        super().__init__(f"redo format {version} is newer than {REDO_FORMAT}, the newest this version reads")


def encode_header(salt: int) -> bytes:
    """Return the first `HEADER_BYTES` of a redo file."""
    head = _HEADER.pack(REDO_MAGIC, REDO_FORMAT, salt, 0)[:-4]
    return head + crc32(head).to_bytes(4, "little")


def encode_record(salt: int, number: int, parts: Sequence[Part], buffers: Sequence[bytes]) -> list[bytes]:
    """Return a record as buffers to be written one after the other; `buffers` are the bytes of all parts, in order."""
    body = b"".join([_PART.pack(*part) for part in parts] + list(buffers))
    head = _RECORD.pack(0, RECORD_MAGIC, RECORD_BYTES + len(body), number, len(parts))[4:]
    return [crc32(body, crc32(head, salt)).to_bytes(4, "little") + head, body]


def record_bytes(parts: int, size: int) -> int:
    """Return the bytes of a record with so many parts, which have `size` bytes together."""
    return RECORD_BYTES + parts * PART_BYTES + size


def decode(data: bytes, damage: list[str]) -> Iterator[Redo]:
    """Yield the parts of all whole records of a file, and add to `damage` what is more than a torn end.

    Raise UnknownRedoFormat for a newer format.
    """
    if len(data) < HEADER_BYTES:
        return
    magic, version, salt, crc = _HEADER.unpack_from(data, 0)
    if magic != REDO_MAGIC or crc32(data[: HEADER_BYTES - 4]) != crc:
        return  # the file was being made, or being made ready for its next life, so no record in it counts
    if version != REDO_FORMAT:
        raise UnknownRedoFormat(version)
    view = memoryview(data)
    offset, last = HEADER_BYTES, 0
    while True:
        number = _record_at(view, offset, salt, last)
        if not number:
            offset = _next_record(data, view, offset + 1, salt, last)
            if not offset:
                return
            damage.append("a record does not check, and whole ones follow it")
            continue
        yield from _parts(view, offset)
        last = number
        offset += _RECORD.unpack_from(view, offset)[2]


def _record_at(view: memoryview, offset: int, salt: int, last: int) -> int:
    """Return the number of the whole record at `offset` if it is later than `last`, else 0."""
    if len(view) - offset < RECORD_BYTES:
        return 0
    crc, magic, length, number, count = _RECORD.unpack_from(view, offset)
    end = offset + length
    if magic != RECORD_MAGIC or end > len(view) or length < RECORD_BYTES + count * PART_BYTES or number <= last:
        return 0
    return number if crc32(view[offset + 4 : end], salt) == crc else 0


def _next_record(data: bytes, view: memoryview, offset: int, salt: int, last: int) -> int:
    """Return where the next whole record begins at or behind `offset`, or 0 if there is none."""
    while (found := data.find(RECORD_MAGIC_BYTES, offset + 4)) >= 0:
        if _record_at(view, found - 4, salt, last):
            return found - 4
        offset = found - 3
    return 0


def _parts(view: memoryview, offset: int) -> Iterator[Redo]:
    count = _RECORD.unpack_from(view, offset)[4]
    place = offset + RECORD_BYTES
    start = place + count * PART_BYTES
    for _ in range(count):
        part = Part(*_PART.unpack_from(view, place))
        yield Redo(part, view[start : start + part.size])
        place += PART_BYTES
        start += part.size
