"""Reading the binary pages of the server as a client does: from the contract, not with the server's code."""

from __future__ import annotations

import struct
from typing import NamedTuple


class Row(NamedTuple):
    seq: int
    timestamp: int
    tries: int
    headers: bytes
    body: bytes


class JournalRow(NamedTuple):
    position: int
    seq: int
    time: int
    span: int
    tries: int
    event: int
    group: str
    value: int


def rows_of(page: bytes) -> list[Row]:
    """Return what a page of application/vnd.curbstone.batches says."""
    rows = []
    at = 0
    while at < len(page):
        size, kind, flags, zero, first, entries, mask_bytes, tried = struct.unpack_from("<IBBHQIII", page, at)
        assert (kind, flags, zero) == (1, 0, 0)
        end = at + 4 + size
        at += 28
        mask = int.from_bytes(page[at : at + mask_bytes], "little") if mask_bytes else -1
        assert mask_bytes in (0, (entries + 7) // 8)
        at += mask_bytes
        tries = dict(struct.unpack_from("<II", page, at + 8 * index) for index in range(tried))
        at += 8 * tried
        for index in range(entries):
            length, delta, timestamp, headers, reserved, extras = struct.unpack_from("<IIQIHH", page, at)
            start = at + 24 + extras
            assert reserved == 0
            if mask >> index & 1:
                block, body = page[start : start + headers], page[start + headers : at + length]
                rows.append(Row(first + delta, timestamp, tries.get(index, 0), block, body))
            at += length
        assert at == end
    return rows


def journal_of(page: bytes) -> list[JournalRow]:
    """Return what a page of application/vnd.curbstone.journal says."""
    rows = []
    at = 0
    while at < len(page):
        position, seq, time, count, tries, event, zero, name_bytes, value = struct.unpack_from("<QQQIIBBHQ", page, at)
        assert zero == 0
        at += 44
        rows.append(JournalRow(position, seq, time, count, tries, event, page[at : at + name_bytes].decode(), value))
        at += name_bytes
    return rows
