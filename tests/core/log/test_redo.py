"""The bytes of redo files: what is whole is read, and nothing else ever passes for it."""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest

from curbstone.core.engine.log.format import UnknownFormat
from curbstone.core.wal.redo_format import (
    BLOCK_BYTES,
    RECORDS_AT,
    Header,
    Part,
    decode,
    encode_header,
    encode_record,
    record_bytes,
)

SALT = 0xDEADBEEF
SIZE = RECORDS_AT + 1000
HEADER = Header(SALT, 7, SIZE)


def record(number: int, *bodies: bytes, header: Header = HEADER) -> bytes:
    parts = [Part(0xABC, n + 1, 7 * n, 168 + n, len(body)) for n, body in enumerate(bodies)]
    return b"".join(encode_record(header, number, parts, bodies))


def file(*records: bytes, first: Header = HEADER, second: Header = HEADER) -> bytes:
    return (encode_header(first) + encode_header(second) + b"".join(records)).ljust(SIZE, b"\0")


def read(data: bytes) -> tuple[list[bytes], list[str], list[str]]:
    found = decode(data)
    return [bytes(redo.data) for redo in found.parts], found.damage, found.notes


def flipped(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :]


def test_redo_records_round_trip() -> None:
    found = decode(file(record(1, b"one", b"two"), record(2, b"three")))
    assert [bytes(redo.data) for redo in found.parts] == [b"one", b"two", b"three"]
    assert found.parts[1].part == Part(0xABC, 2, 7, 169, 3)
    assert not found.damage and not found.notes


def test_bytes_of_redo_format_2_do_not_change() -> None:
    """Another version must continue reading them: whoever changes this test gives the format a new number."""
    assert encode_header(HEADER).rstrip(b"\0").hex() == (
        "435552425245444f02000000efbeadde78dab9d50700000000000000e8230000000000002d7e4c5c"
    )
    assert record(1, b"one").hex() == (
        "2772af025245444f3b000000010000000100000007000000"
        "bc0a000000000000010000000000000000000000a800000000000000030000006f6e65"
    )


def format_1(*records: tuple[int, bytes]) -> bytes:
    """Return a file as it was written before there were generations."""
    head = b"CURBREDO" + (1).to_bytes(4, "little") + SALT.to_bytes(4, "little")
    data = head + crc32(head).to_bytes(4, "little")
    for number, body in records:
        part = bytes.fromhex("bc0a000000000000010000000000000000000000a800000000000000") + len(body).to_bytes(
            4, "little"
        )
        fields = (0x4F444552, 20 + len(part + body), number, 1)
        rest = b"".join(field.to_bytes(4, "little") for field in fields) + part + body
        data += crc32(rest, SALT).to_bytes(4, "little") + rest
    return data


def test_format_1_is_read() -> None:
    data = format_1((1, b"one"), (2, b"two"))
    assert data.hex().startswith("435552425245444f01000000efbeadde9bdd365bb49a47d15245444f370000000100000001000000")
    assert read(data + bytes(1000)) == ([b"one", b"two"], [], [])
    assert read(flipped(data, 60) + bytes(1000))[0] == [b"two"]
    bodies, damage, _ = read(flipped(data, 5))
    assert (bodies, len(damage)) == ([], 1)


def test_redo_record_has_the_announced_size() -> None:
    assert len(record(1, b"one", b"four")) == record_bytes(2, 7)


def test_a_torn_last_record_is_left_out_and_noted_wherever_it_is_torn() -> None:
    first, second = record(1, b"one"), record(2, b"two", b"three")
    for end in range(len(second)):
        bodies, damage, notes = read(file(first, second[:end]))
        assert (bodies, damage) == ([b"one"], []), f"byte {end}"
        assert bool(notes) == (end > 20), f"byte {end}: its generation is not there, or is"
    assert "last record does not check" in read(file(first, second[:30]))[2][0]


@pytest.mark.parametrize("index", range(len(record(1, b"one", b"two"))))
def test_flipped_byte_loses_one_record_and_is_reported_if_others_follow(index: int) -> None:
    bodies, damage, _ = read(flipped(file(record(1, b"one", b"two"), record(2, b"three")), RECORDS_AT + index))
    assert bodies == [b"three"] and len(damage) == 1


@pytest.mark.parametrize("block", [0, BLOCK_BYTES], ids=["first", "second"])
def test_one_damaged_header_copy_loses_nothing(block: int) -> None:
    data = file(record(1, b"one"), record(2, b"two"))
    for index in range(block, block + BLOCK_BYTES):
        bodies, damage, notes = read(flipped(data, index))
        assert (bodies, damage) == ([b"one", b"two"], []), f"byte {index}"
        assert len(notes) == (index - block < 40), f"byte {index}"
    assert read(data[:block] + bytes(BLOCK_BYTES) + data[block + BLOCK_BYTES :])[0] == [b"one", b"two"]


def test_file_without_valid_header_is_damaged() -> None:
    data = file(record(1, b"one"))
    for index in range(40):
        bodies, damage, _ = read(flipped(flipped(data, index), BLOCK_BYTES + index))
        assert (bodies, len(damage)) == ([], 1), f"byte {index}"
    assert read(bytes(SIZE))[1] and read(b"")[1]


def test_short_file_is_damaged_and_read_as_far_as_possible() -> None:
    data = file(record(1, b"one"), record(2, b"two"))
    for end in range(SIZE):
        bodies, damage, _ = read(data[:end])
        assert damage, f"cut at {end}"
        assert bodies == [b"one", b"two"][: len(bodies)]
    assert read(data[: SIZE - 1])[0] == [b"one", b"two"]


def test_valid_header_copy_of_the_higher_generation_wins() -> None:
    older = Header(1, 6, SIZE)
    data = file(record(1, b"new"), first=HEADER, second=older)
    assert read(data) == ([b"new"], [], [])
    assert read(file(record(1, b"new"), first=older, second=HEADER)) == ([b"new"], [], [])


def test_torn_new_generation_over_an_old_one_is_no_damage() -> None:
    """The header of the new one is there before any of its records, so nothing of the old one counts."""
    sector = 512
    old = Header(1, 6, SIZE)
    before = file(*(record(n, bytes(120), header=old) for n in range(1, 6)), first=HEADER)
    after = file(record(1, bytes(700)), first=HEADER)
    count = (SIZE - RECORDS_AT) // sector + 1
    for mask in range(1 << count):
        data = before[:RECORDS_AT] + b"".join(
            (after if mask >> n & 1 else before)[RECORDS_AT + n * sector :][:sector] for n in range(count)
        )
        bodies, damage, _ = read(data)
        assert damage == [] and bodies in ([], [bytes(700)])


def test_a_record_written_to_the_wrong_place_hides_no_other() -> None:
    """Those behind it were skipped, because their numbers were lower."""
    two, three = (record(n, b"%d" % n) for n in (2, 3))
    bodies, damage, _ = read(file(three, two, three))
    assert bodies == [b"3", b"2", b"3"] and damage == ["record 1 is missing"]


def test_records_of_earlier_generations_and_lookalike_bodies_are_ignored() -> None:
    older = Header(1, 6, SIZE)
    old = record(1, b"old", header=older) + record(2, b"older", header=older)
    dice = Random(5)
    for _ in range(50):
        inner = record(2, b"inner", header=Header(dice.randrange(1 << 32), 7, SIZE))
        fresh = record(1, inner)
        assert read(file(fresh + (old + bytes(200))[len(fresh) :]))[:2] == ([inner], [])
    assert read(file(old)) == ([], [], [])


def test_a_newer_format_is_reported_and_not_read() -> None:
    data = bytearray(encode_header(HEADER))
    data[8] = 3
    data[16:20] = crc32(data[:16]).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="redo format 3 is newer than 2"):
        decode(bytes(data))


def test_previous_version_recognizes_the_format_as_newer() -> None:
    """It checks the first 20 bytes, and then refuses to start; otherwise it would remove the file."""
    start = encode_header(HEADER)[:20]
    assert start[:12] == b"CURBREDO\x02\0\0\0" and crc32(start[:16]).to_bytes(4, "little") == start[16:]
