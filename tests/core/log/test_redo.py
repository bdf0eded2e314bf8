"""The bytes of redo files: what is whole is read, and nothing else ever passes for it."""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest

from curbstone.core.log.redo import (
    HEADER_BYTES,
    Part,
    UnknownRedoFormat,
    decode,
    encode_header,
    encode_record,
    record_bytes,
)

SALT = 0xDEADBEEF


def record(number: int, *bodies: bytes, salt: int = SALT) -> bytes:
    parts = [Part(0xABC, n + 1, 7 * n, 168 + n, len(body)) for n, body in enumerate(bodies)]
    return b"".join(encode_record(salt, number, parts, bodies))


def read(data: bytes) -> tuple[list[bytes], list[str]]:
    damage: list[str] = []
    return [bytes(redo.data) for redo in decode(data, damage)], damage


def test_what_was_written_comes_back() -> None:
    data = encode_header(SALT) + record(1, b"one", b"two") + record(2, b"three")
    found = list(decode(data + bytes(100), []))
    assert [bytes(redo.data) for redo in found] == [b"one", b"two", b"three"]
    assert found[1].part == Part(0xABC, 2, 7, 169, 3)


def test_the_bytes_of_redo_format_1_stay_what_they_are() -> None:
    """Another version must go on reading them: whoever changes this test gives the format a new number."""
    assert (encode_header(SALT) + record(1, b"one")).hex() == (
        "435552425245444f01000000efbeadde9bdd365bb49a47d15245444f370000000100000001000000"
        "bc0a000000000000010000000000000000000000a800000000000000030000006f6e65"
    )


def test_a_record_takes_what_is_said() -> None:
    assert len(record(1, b"one", b"four")) == record_bytes(2, 7)


def test_a_torn_end_is_left_out_wherever_it_is_torn() -> None:
    whole = encode_header(SALT) + record(1, b"one")
    data = whole + record(2, b"two", b"three")
    for end in range(len(whole), len(data)):
        assert read(data[:end]) == ([b"one"], [])
        assert read(data[:end] + bytes(len(data) - end)) == ([b"one"], [])


def test_any_one_flipped_byte_takes_one_record_and_is_told_if_others_follow() -> None:
    first, second = record(1, b"one", b"two"), record(2, b"three")
    data = encode_header(SALT) + first + second
    for index in range(HEADER_BYTES, HEADER_BYTES + len(first)):
        damaged = data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :]
        bodies, damage = read(damaged)
        assert bodies == [b"three"] and len(damage) == 1, f"byte {index}"


def test_a_file_whose_header_does_not_check_says_nothing() -> None:
    data = encode_header(SALT) + record(1, b"one")
    for index in range(HEADER_BYTES):
        assert read(data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :]) == ([], [])
    assert not any(read(data[:end])[0] for end in range(HEADER_BYTES))


def test_records_of_an_earlier_life_do_not_count_nor_bodies_that_look_like_records() -> None:
    old = record(1, b"old", salt=1) + record(2, b"older", salt=1)
    dice = Random(5)
    for _ in range(50):
        fresh = record(1, record(2, b"inner", salt=dice.randrange(1 << 32)))
        data = encode_header(SALT) + fresh
        data += (encode_header(1) + old + bytes(200))[len(data) :]
        assert len(read(data)[0]) == 1
    assert read(encode_header(SALT) + old) == ([], [])


def test_a_newer_format_is_told_and_not_read() -> None:
    data = bytearray(encode_header(SALT))
    data[8] = 2
    data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownRedoFormat, match="redo format 2 is newer than 1"):
        list(decode(bytes(data), []))
