"""The marker of a commit, as bytes: what is to be applied, and what its files must be.

A file holds it twice, so that one bit or one sector costs nothing. ::

    file     copy, copy
    copy     JSON, line feed, CRC of the JSON as 8 hex digits, line feed

The first release wrote one copy, and of each file only name and bytes; that is read, too.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import NamedTuple
from zlib import crc32

from curbstone.core.staging.frames import Share
from curbstone.core.staging.identity import Series

MARKER = "commit"
MARKER_BYTES_MAX = 128 * 1024 * 1024

_CRC_BYTES = len("\n00000000\n")


class PartFile(NamedTuple):
    """A file of frames in a transaction's directory, and what must be in it."""

    name: str
    size: int
    """Bytes of the frames."""
    crc: int | None = None
    """CRC of the frames; None where the first release wrote the marker."""
    messages: int | None = None


class Marker(NamedTuple):
    """What is to be applied."""

    number: int
    project: str
    identifier: str
    time_ms: int
    files: list[PartFile]
    queues: dict[str, tuple[str, Share]]
    """By name: uid, and what is for it."""
    series: Series | None = None

    @property
    def messages(self) -> int:
        """How many there are in all."""
        return sum(share.count for _, share in self.queues.values())

    def encode(self) -> bytes:
        """Return the file's contents."""
        queues = {name: [uid, *astuple(share)] for name, (uid, share) in self.queues.items()}
        series = [(self.series.hashed.hex(), self.series.number)] if self.series else []
        line = json.dumps([*self[:5], queues, *series], separators=(",", ":")).encode()
        return 2 * (line + b"\n%08x\n" % crc32(line))


def decode_marker(data: bytes) -> Marker | None:
    """Return what a marker's file says, from whichever copy is good; None where there is none."""
    half = len(data) // 2
    for copy in (data[:half], data[half:], data):
        line, end = copy[:-_CRC_BYTES], copy[-_CRC_BYTES:]
        if line and end == b"\n%08x\n" % crc32(line):
            number, project, identifier, time_ms, files, queues, *rest = json.loads(line)
            series = Series(bytes.fromhex(rest[0][0]), rest[0][1]) if rest else None
            shares = {name: (uid, Share(*numbers)) for name, (uid, *numbers) in queues.items()}
            return Marker(number, project, identifier, time_ms, [PartFile(*file) for file in files], shares, series)
    return None
