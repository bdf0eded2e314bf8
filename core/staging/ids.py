"""The list of committed ids, as bytes: records of one size, in two files that say the same.

A record is written to the first file and synced, then to the second. So what one of them lost the other has, and
a record that is good in neither was lost to damage, unless it is behind all that the second file ever had: then it
is of an append that a crash cut off, and was never answered. ::

    record   CRC of the rest (4), hash of the id (16), wall clock in ms (8), messages (8); numbers little-endian

The first release wrote one file. What is damaged there is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

HASH_BYTES = 16

_RECORD = struct.Struct(f"<I{HASH_BYTES}sQQ")
RECORD_BYTES = _RECORD.size
LOST = bytes(HASH_BYTES)
"""The hash of a record that stands for ids that were lost: since when, and how many."""


class CommittedId(NamedTuple):
    """A transaction that was committed."""

    hashed: bytes
    time_ms: int
    messages: int

    def encode(self) -> bytes:
        """Return its record."""
        rest = _RECORD.pack(0, *self)[4:]
        return crc32(rest).to_bytes(4, "little") + rest


class Ids(NamedTuple):
    """What two files say together."""

    good: int
    """Ids that were found."""
    lost: int
    """Records that are good in neither file: ids that are not known any more."""
    healed: int
    """Records that are damaged in one file and good in the other."""
    is_same: bool
    """Whether both files hold just what was found."""


def decode_ids(first: bytes, second: bytes | None, take: Callable[[CommittedId], None]) -> Ids:
    """Call `take` with each id that the files hold, in their order; `second` is None where there is no such file."""
    answered = _count(first if second is None else second)
    others = second or b""
    synced = _count(others)
    while synced and _record(others, synced - 1) is None:
        synced -= 1
    good = lost = healed = 0
    for place in range(max(_count(first), _count(others))):
        one, other = _record(first, place), _record(others, place)
        known = [one] if one == other else [one, other]
        known_good = [each for each in known if each is not None]
        for each in known_good:
            take(each)
        good += len(known_good)
        if not known_good:
            lost += place < answered
        elif one is None or other is None:
            healed += place < _count(first) if one is None else place < synced
    return Ids(good, lost, healed, first == second and good * RECORD_BYTES == len(first))


def _count(data: bytes) -> int:
    return len(data) // RECORD_BYTES


def _record(data: bytes, place: int) -> CommittedId | None:
    at = place * RECORD_BYTES
    if at + RECORD_BYTES > len(data):
        return None
    crc, *fields = _RECORD.unpack_from(data, at)
    if crc32(memoryview(data)[at + 4 : at + RECORD_BYTES]) != crc:
        return None
    return CommittedId(*fields)
