"""Finds out about a damaged segment: its salt, if the header is lost, and the bit that is wrong in a batch.

Pure: bytes in, facts out. CRC-32 is linear. So a whole batch and its CRC give the salt from which the CRC started, and
the difference of two CRCs gives the single bit that differs. One batch proves nothing, because any bytes give some
salt. Two batches that lie end to end and give the same salt do.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

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
_POLYNOMIAL = 0xEDB88320


def _step(register: int) -> int:
    return register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = _step(byte)
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


def flipped_bit(data: bytes, salt: int) -> int | None:
    """Return the one bit of a batch that is wrong (8 * byte + bit), or None if no single bit explains its CRC."""
    if len(data) > BATCH_BYTES_TRIED:
        return None
    difference = crc32(data[4:], salt) ^ int.from_bytes(data[:4], "little")
    if not difference & (difference - 1):  # in the CRC itself
        return difference.bit_length() - 1 if difference else None
    register = _POLYNOMIAL  # how the very last bit, the highest of the last byte, changes the CRC
    for place in range(8 * (len(data) - 4)):
        if register == difference:
            byte, bit = divmod(place, 8)
            return 8 * (len(data) - 1 - byte) + 7 - bit
        register = _step(register)
    return None
