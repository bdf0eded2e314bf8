"""Finds a single wrong bit of a batch: CRC-32 is linear, so the difference of two CRCs identifies the bit."""

from __future__ import annotations

from zlib import crc32

from curbstone.core.engine.recovery.salvage import BATCH_BYTES_TRIED, POLYNOMIAL, crc_step


def flipped_bit(data: bytes, salt: int) -> int | None:
    """Return the single wrong bit of a batch (8 * byte + bit), or None if no single bit explains its CRC."""
    if len(data) > BATCH_BYTES_TRIED:
        return None
    difference = crc32(data[4:], salt) ^ int.from_bytes(data[:4], "little")
    if not difference & (difference - 1):  # in the CRC itself
        return difference.bit_length() - 1 if difference else None
    register = POLYNOMIAL  # how the very last bit, the highest of the last byte, changes the CRC
    for place in range(8 * (len(data) - 4)):
        if register == difference:
            byte, bit = divmod(place, 8)
            return 8 * (len(data) - 1 - byte) + 7 - bit
        register = crc_step(register)
    return None
