"""Finds the salt of a segment whose header is lost, from its batches.

The next segment could keep the salt of the one before, but not that of the newest segment, and a small queue has no
other. So it has to be derived from the batches themselves. Pure: bytes in, numbers out. CRC-32 is linear, so a whole
batch and its CRC give the salt from which the CRC started. One batch proves nothing, because any bytes give some
salt. Two batches that lie end to end and give the same salt do.
"""

from __future__ import annotations

from collections.abc import Iterator

from curbstone.core.engine.log.format import (
    BATCH_MAGIC_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    decode_batch_header,
)

BATCH_BYTES_TRIED = 1024 * 1024
"""Larger batches are not tried, because each byte takes a step in Python."""
PAIRS_TRIED = 64
SEQ_MAX = 1 << 62
POLYNOMIAL = 0xEDB88320


def crc_step(register: int) -> int:
    """Return a CRC register one bit later."""
    return register >> 1 ^ (POLYNOMIAL if register & 1 else 0)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = crc_step(byte)
        table.append(byte)
    return table


_TABLE = _table()
_BY_TOP = {entry >> 24: index for index, entry in enumerate(_TABLE)}


def salt_of(data: bytes, offset: int, length: int) -> int:
    """Return the salt with which the batch at `offset` matches the CRC it begins with."""
    register = int.from_bytes(data[offset : offset + 4], "little") ^ 0xFFFFFFFF
    for byte in reversed(data[offset + 4 : offset + length]):
        index = _BY_TOP[register >> 24]
        register = ((register ^ _TABLE[index]) << 8 & 0xFFFFFFFF) | (index ^ byte)
    return register ^ 0xFFFFFFFF


def candidates(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the places in a segment that look like the header of a batch that ends within the data."""
    at = data.find(BATCH_MAGIC_BYTES, SEGMENT_BYTES + 4)
    while at >= 0:
        header = decode_batch_header(data, at - 4)
        if header is not None and at - 4 + header.length <= len(data) and header.first_seq < SEQ_MAX:
            yield at - 4, header
        at = data.find(BATCH_MAGIC_BYTES, at + 1)


def find_salt(data: bytes, after_batch: int) -> int | None:
    """Return the salt that two batches agree on that lie end to end and are numbered above `after_batch`, or None."""
    tried = 0
    for offset, header in candidates(data):
        following = decode_batch_header(data, offset + header.length)
        end = offset + header.length + (following.length if following else 0)
        if header.number <= after_batch or following is None or end > len(data) or following.number <= header.number:
            continue
        if max(header.length, following.length) > BATCH_BYTES_TRIED:
            continue
        salt = salt_of(data, offset, header.length)
        if salt == salt_of(data, offset + header.length, following.length):
            return salt
        tried += 1
        if tried == PAIRS_TRIED:
            break
    return None


def next_seq_hint(data: bytes) -> int:
    """Return the seq behind all messages that seem to be in a segment whose batches can't be checked; 1 for none."""
    return max((header.first_seq + header.messages for _, header in candidates(data)), default=1)
