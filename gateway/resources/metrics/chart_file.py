"""The file of the charts: figures of the server and of its busiest queues, for an hour (10 s steps) and a day (1 min).

It has two rings of rows of a fixed size. A row holds one step of the server and of up to `QUEUES_MAX` queues, and its
time determines its place in the ring. So rows are never searched, moved or deleted: each is overwritten one turn of the
ring later. Each row has a checksum. A row that is missing, torn, damaged or of another time is a gap, even after the
clock has jumped, and nothing needs a sync.

Numbers are little-endian: u32 checksum of what follows, 4 bytes `MARK`, u64 time in seconds, u16 series; then the id of
each series (8 bytes), and the values of each (f32, in the order of `FIGURES`; NaN for an unknown value).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import isnan, nan
from typing import NamedTuple, Protocol
from zlib import crc32

FIGURES = (
    *("messages_ready", "messages_unacked", "messages_delayed"),
    *("messages_published_per_second", "messages_delivered_per_second", "messages_acknowledged_per_second"),
)
QUEUES_MAX = 200
ROW_BYTES = 8192
MARK = b"CbR1"
ID_BYTES = 8
SERVER = ""
"""Stands for a queue's uid in the series of the server."""

_HEAD = struct.Struct("<I4sQH")
_CRC_BYTES = 4
_VALUES = struct.Struct(f"<{len(FIGURES)}f")

Values = tuple[float, ...]
Step = Mapping[str, Values]
"""The values of one step, by the uids of queues."""
TimeSeries = dict[str, list[float | None]]
"""The values of one series over time, by figure."""


class Ring(NamedTuple):
    """A ring of rows in the file."""

    step_s: int
    rows: int
    offset: int

    def place(self, time_s: int) -> int:
        """Return where the row of a time lies."""
        return self.offset + time_s // self.step_s % self.rows * ROW_BYTES

    def last(self, time_s: float) -> int:
        """Return the time of the last row that may be there."""
        return int(time_s) // self.step_s * self.step_s


HOUR = Ring(10, 360, 0)
DAY = Ring(60, 1440, HOUR.rows * ROW_BYTES)
FILE_BYTES = (HOUR.rows + DAY.rows) * ROW_BYTES


class File(Protocol):
    """The needed methods of a file; see `core.disk.File`."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Write the buffers consecutively from `offset`."""


def encode_row(time_s: int, series: Step) -> bytes:
    """Return a row."""
    parts = [*map(_id_of, series), *[_VALUES.pack(*values) for values in series.values()]]
    rest = _HEAD.pack(0, MARK, time_s, len(series))[_CRC_BYTES:] + b"".join(parts)
    return struct.pack("<I", crc32(rest)) + rest


def means(steps: Sequence[Step]) -> Step:
    """Return the mean of each value over these steps. A step in which it is unknown does not count."""
    values_of: dict[str, list[Values]] = {}
    for step in steps:
        for uid, values in step.items():
            values_of.setdefault(uid, []).append(values)
    return {uid: tuple(map(_mean, zip(*found, strict=True))) for uid, found in values_of.items()}


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else nan


def _id_of(uid: str) -> bytes:
    return blake2b(uid.encode(), digest_size=ID_BYTES).digest()


def _values_in(row: bytes, time_s: int, ids: Sequence[bytes]) -> list[Values | None]:
    """Return the values of each series in the row of this time, None for a series that the row lacks."""
    nothing: list[Values | None] = [None] * len(ids)
    if len(row) < _HEAD.size:
        return nothing
    crc, mark, written_s, count = _HEAD.unpack_from(row)
    values_at = _HEAD.size + count * ID_BYTES
    end = values_at + count * _VALUES.size
    if mark != MARK or written_s != time_s or end > len(row) or crc != crc32(memoryview(row)[_CRC_BYTES:end]):
        return nothing
    names = row[_HEAD.size : values_at]
    places = [_index(names, each) for each in ids]
    return [None if at < 0 else _VALUES.unpack_from(row, values_at + at * _VALUES.size) for at in places]


def _index(names: bytes, name: bytes) -> int:
    at = names.find(name)
    while at % ID_BYTES and at >= 0:
        at = names.find(name, at + 1)
    return at // ID_BYTES


def read_series(file: File, ring: Ring, times: range, uids: Sequence[str]) -> list[TimeSeries]:
    """Return the figures of each series at these times, None for an unknown value. Blocking."""
    ids = list(map(_id_of, uids))
    rows = [_values_in(file.read(ring.place(time_s), ROW_BYTES), time_s, ids) for time_s in times]
    return [_time_series([row[index] for row in rows]) for index in range(len(ids))]


def unknown(times: range) -> TimeSeries:
    """Return figures of which all are unknown."""
    return _time_series([None] * len(times))


def _time_series(found: list[Values | None]) -> TimeSeries:
    return {
        name: [None if values is None or isnan(values[index]) else round(values[index], 3) for values in found]
        for index, name in enumerate(FIGURES)
    }
