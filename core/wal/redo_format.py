"""The bytes of a redo file: what the commits of several queues write to their segments, under one checksum.

Pure: no file, no clock. A redo file is a header, stored twice, followed by records, end to end. Behind the last record
there are zeros, or records of an earlier generation of the file. Numbers are little-endian. ::

    header   magic "CURBREDO", format, salt, crc of these; generation, size of the file, crc of all before
             (in the first 4 KiB, and again in the next 4 KiB; the valid copy with the higher generation counts)
    record   crc, magic, length, number, count of parts, generation (its low 32 bits);
             then for each part: queue uid, segment number, salt of the segment, offset, bytes;
             then the bytes of all parts

A file has its name only when all of it is written and synced, and both headers of a generation are synced before its
first record. So a file that is shorter than its header says, or has no valid header, is damaged. A crash can't do that.

A record's crc covers everything after the crc itself. It starts from the file's salt, which is new in each generation,
so records of an earlier generation never pass for records of this one. A part says which bytes lie at one place in one
life of a segment file. Nothing else is ever written at that place, so a part can be written again, once or many times,
without changing anything that is good. `docs/shared-sync.md` says when these files are written and read.

Format 1 has one header, which ends after its first crc, and no generations. It was written together with the first
record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from curbstone.core.engine.log.format import UnknownFormat

REDO_FORMAT = 2
_FORMAT_WITHOUT_GENERATION = 1
REDO_MAGIC = b"CURBREDO"
RECORD_MAGIC = 0x4F444552  # "REDO" on disk
RECORD_MAGIC_BYTES = RECORD_MAGIC.to_bytes(4, "little")
REDO_PREFIX = "redo."

BLOCK_BYTES = 4096
"""Where the second copy of the header begins: a disk that tears a block in writing tears only one of them."""
RECORDS_AT = 2 * BLOCK_BYTES
_START = struct.Struct("<8sIII")  # every format begins so: an earlier version has to recognize a newer one
_HEADER = struct.Struct("<QQI")
_RECORD_1 = struct.Struct("<IIIII")
_RECORD = struct.Struct("<IIIIII")
RECORD_BYTES = _RECORD.size
_PART = struct.Struct("<QQIQI")
PART_BYTES = _PART.size


class Header(NamedTuple):
    """What a redo file begins with."""

    salt: int
    generation: int
    size: int
    """The bytes of the whole file."""


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
    data: bytes | memoryview


@dataclass
class Decoded:
    """What the bytes of a redo file say."""

    parts: list[Redo] = field(default_factory=list)
    """The parts of all whole records, in order."""
    damage: list[str] = field(default_factory=list)
    """What no crash can leave."""
    notes: list[str] = field(default_factory=list)
    """What does not check and may be the work of a crash, or costs nothing."""


def encode_header(header: Header) -> bytes:
    """Return one block of `BLOCK_BYTES` with a header."""
    start = _START.pack(REDO_MAGIC, REDO_FORMAT, header.salt, 0)[:-4]
    start += crc32(start).to_bytes(4, "little")
    start += _HEADER.pack(header.generation, header.size, 0)[:-4]
    return (start + crc32(start).to_bytes(4, "little")).ljust(BLOCK_BYTES, b"\0")


def encode_record(header: Header, number: int, parts: Sequence[Part], buffers: Sequence[bytes]) -> list[bytes]:
    """Return a record as buffers to be written one after the other; `buffers` are the bytes of all parts, in order."""
    body = b"".join([_PART.pack(*part) for part in parts] + list(buffers))
    generation = header.generation & 0xFFFFFFFF
    head = _RECORD.pack(0, RECORD_MAGIC, RECORD_BYTES + len(body), number, len(parts), generation)[4:]
    return [crc32(body, crc32(head, header.salt)).to_bytes(4, "little") + head, body]


def record_bytes(parts: int, size: int) -> int:
    """Return the bytes of a record with so many parts, which have `size` bytes together."""
    return RECORD_BYTES + parts * PART_BYTES + size


def decode(data: bytes) -> Decoded:
    """Return what a file says; raise UnknownFormat for a newer format."""
    found = Decoded()
    copies = [_header_at(data, at) for at in (0, BLOCK_BYTES)]
    if (old := _salt_of_format_1(data)) is not None:
        _Records(data, Header(old, 0, len(data)), _START.size, _RECORD_1).read(found)
        return found
    header = max([copy for copy in copies if copy is not None], key=lambda copy: copy.generation, default=None)
    if header is None:
        found.damage.append("it has no valid header, so none of it can be read")
        return found
    for copy, name in zip(copies, ("first", "second"), strict=True):
        if copy is None:
            found.notes.append(f"the {name} copy of its header does not check; the other one is used")
    if len(data) < header.size:
        found.damage.append(f"bytes {len(data)} to {header.size} are missing")
    _Records(data, header, RECORDS_AT, _RECORD).read(found)
    return found


def _start_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the format and the salt at the beginning of a header, or None if it does not check."""
    if len(data) < at + _START.size:
        return None
    magic, version, salt, crc = _START.unpack_from(data, at)
    return (version, salt) if magic == REDO_MAGIC and crc32(data[at : at + _START.size - 4]) == crc else None


def _salt_of_format_1(data: bytes) -> int | None:
    start = _start_at(data, 0)
    return start[1] if start is not None and start[0] == _FORMAT_WITHOUT_GENERATION else None


def _header_at(data: bytes, at: int) -> Header | None:
    start = _start_at(data, at)
    end = at + _START.size + _HEADER.size
    if start is None or start[0] == _FORMAT_WITHOUT_GENERATION:
        return None
    if start[0] != REDO_FORMAT:
        raise UnknownFormat("redo", start[0], REDO_FORMAT)
    if len(data) < end:
        return None
    generation, size, crc = _HEADER.unpack_from(data, at + _START.size)
    return Header(start[1], generation, size) if crc32(data[at : end - 4]) == crc else None


class _Records:
    """Reads the records of one generation.

    A disk may have written a block to the wrong place, so a record can be found too early, or twice. Parts can be
    written in any order, so each whole record counts wherever it lies.
    """

    def __init__(self, data: bytes, header: Header, start: int, head: struct.Struct) -> None:
        self._data = data
        self._view = memoryview(data)
        self._header = header
        self._head = head
        self._offset = start
        self._numbers: set[int] = set()

    def read(self, found: Decoded) -> None:
        """Add the parts of all whole records, and what does not check between and behind them."""
        while True:
            number = self._whole_at(self._offset)
            if not number:
                following = self._following(self._offset + 1)
                if not following:
                    break
                text = f"bytes {self._offset} to {following}: a record does not check, and whole ones follow it"
                found.damage.append(text)
                self._offset = following
                continue
            found.parts += self._parts(self._offset)
            self._numbers.add(number)
            self._offset += self._head.unpack_from(self._view, self._offset)[2]
        missing = sorted(set(range(1, self._last)) - self._numbers)
        if missing and not found.damage:
            found.damage.append(f"record {', '.join(map(str, missing))} is missing")
        if self._is_torn_at(self._offset):
            found.notes.append(
                f"bytes {self._offset} on: its last record does not check and is not taken:"
                " torn by a crash before it was confirmed, or damaged"
            )

    @property
    def _last(self) -> int:
        return max(self._numbers, default=0)

    def _whole_at(self, offset: int) -> int:
        """Return the number of the whole record at `offset`, or 0."""
        view = self._view
        if len(view) - offset < self._head.size:
            return 0
        crc, magic, length, number, count, *_generation = self._head.unpack_from(view, offset)
        end = offset + length
        least = self._head.size + count * PART_BYTES
        if magic != RECORD_MAGIC or end > len(view) or length < least:
            return 0
        return int(number) if crc32(view[offset + 4 : end], self._header.salt) == crc else 0

    def _following(self, offset: int) -> int:
        """Return where the next whole record begins at or behind `offset`, or 0 if there is none."""
        while (found := self._data.find(RECORD_MAGIC_BYTES, offset + 4)) >= 0:
            if self._whole_at(found - 4):
                return found - 4
            offset = found - 3
        return 0

    def _is_torn_at(self, offset: int) -> bool:
        """Return whether the bytes at `offset` may have been the next record of this generation."""
        if self._head is _RECORD_1 or len(self._view) - offset < self._head.size:
            return False
        _crc, magic, _length, number, _count, generation = self._head.unpack_from(self._view, offset)
        is_next = magic == RECORD_MAGIC or number == self._last + 1
        return bool(is_next and generation == self._header.generation & 0xFFFFFFFF)

    def _parts(self, offset: int) -> list[Redo]:
        count = self._head.unpack_from(self._view, offset)[4]
        place = offset + self._head.size
        start = place + count * PART_BYTES
        parts = []
        for _ in range(count):
            part = Part(*_PART.unpack_from(self._view, place))
            parts.append(Redo(part, self._view[start : start + part.size]))
            place += PART_BYTES
            start += part.size
        return parts
