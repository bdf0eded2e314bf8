"""The bytes of a segment: what is written comes back, and no wrong byte goes unseen."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.format import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    Note,
    Released,
    SegmentHeader,
    Settled,
    UnknownFormat,
    batch_is_whole,
    decode_batch_header,
    decode_entries,
    decode_notes,
    decode_released,
    decode_segment_header,
    decode_settled,
    encode_batch,
    encode_delivered,
    encode_entries,
    encode_floor,
    encode_note,
    encode_released,
    encode_segment_header,
    encode_settled,
    entry_bytes,
    runs_of,
)
from curbstone.core.message import Message

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
GROUP = st.text("abcXYZ019_.-", max_size=64)
HEADER = SegmentHeader(0xDEADBEEF, 0x1234_5678_9ABC, 7, 6, 4321, 3, 1000, 500, 9)


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    """Messages as a queue stamps them: seqs that grow, with gaps as in a copy."""
    seq = draw(st.integers(1, 1 << 60))
    made = []
    for gap in draw(st.lists(st.integers(1, 1000), min_size=1, max_size=6)):
        message = Message(draw(st.binary(max_size=50)), draw(st.binary(max_size=20)))
        message.groups = tuple(draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)))
        message.seq = seq
        message.timestamp_ms = draw(st.integers(0, 1 << 50))
        message.expires_ms = draw(st.sampled_from([0, 1, 1 << 50]))
        seq += gap
        made.append(message)
    return made


def facts(message: Message) -> tuple[object, ...]:
    return (
        *(message.seq, message.body, message.headers, message.timestamp_ms),
        *(message.expires_ms, message.groups),
    )


@given(messages())
def test_messages_come_back_and_take_the_bytes_that_were_told(given_messages: list[Message]) -> None:
    parts: list[bytes] = []
    first = given_messages[0].seq
    any_extras = encode_entries(given_messages, first, parts)
    data = b"".join(parts)
    assert len(data) == sum(map(entry_bytes, given_messages))
    assert any_extras == any(message.expires_ms or message.groups for message in given_messages)
    found = decode_entries(b"junk" + data, 4, len(given_messages), first)
    assert list(map(facts, found)) == list(map(facts, given_messages))


@given(st.lists(st.tuples(GROUP, U64, U32, U32, U64), max_size=8))
def test_releases_come_back(values: list[tuple[str, int, int, int, int]]) -> None:
    released = [Released(*value) for value in values]
    data = encode_released(released)
    assert list(decode_released(data, 0, len(data))) == released


@given(st.lists(st.tuples(GROUP, st.integers(1, 5), st.lists(st.tuples(U64, U32), max_size=5)), max_size=4))
def test_settles_come_back(lists: list[tuple[str, int, list[tuple[int, int]]]]) -> None:
    data = b"".join(encode_settled(group, reason, runs) for group, reason, runs in lists)
    expected = [Settled(group, reason, *run) for group, reason, runs in lists for run in runs]
    assert list(decode_settled(data, 0, len(data))) == expected


@given(st.sets(st.integers(0, 300), min_size=1))
def test_runs_of_seqs_cover_them_exactly(seqs: set[int]) -> None:
    runs = runs_of(list(seqs))
    assert [seq for first, count in runs for seq in range(first, first + count)] == sorted(seqs)
    assert all(before[0] + before[1] < after[0] for before, after in zip(runs, runs[1:], strict=False))


def test_notes_come_back() -> None:
    data = encode_floor(77) + encode_delivered("a.group", 1 << 40) + encode_note(Note.FLOOR, b"")
    seq = (1 << 40).to_bytes(8, "little")
    expected = [(Note.FLOOR, (77).to_bytes(8, "little")), (Note.DELIVERED, seq + b"a.group"), (Note.FLOOR, b"")]
    assert list(decode_notes(b"junk" + data, 4, 4 + len(data))) == expected


def small_batch(salt: int = 99) -> bytes:
    """A batch with one of everything."""
    message = Message(b"the body", b"a:b\n", groups=("g",))
    message.seq, message.expires_ms = 41, 123
    entries: list[bytes] = []
    encode_entries([message], 41, entries)
    releases = encode_released([Released("g", 40, 1, 2, 5)])
    settles = encode_settled("", 1, [(1, 39)])
    notes = encode_floor(2)
    parts = [*entries, releases, settles, notes]
    sections = (len(releases), len(settles), len(notes))
    header = BatchHeader(BATCH_BYTES + sum(map(len, parts)), 1, 12, 1000, 41, 40, 0, 1, *sections)
    data = b"".join(encode_batch(salt, header, parts))
    assert decode_batch_header(data, 0) == header
    assert header.messages_bytes == entry_bytes(message)
    return data


def is_good(data: bytes, salt: int) -> bool:
    header = decode_batch_header(data, 0)
    return header is not None and batch_is_whole(data, 0, header.length, salt)


def test_a_batch_is_whole() -> None:
    assert is_good(small_batch(), 99)


def test_every_flipped_byte_of_a_batch_is_seen() -> None:
    data = small_batch()
    for index in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:index] + bytes([data[index] ^ flip]) + data[index + 1 :]
            assert not is_good(damaged, 99), f"byte {index} ^ {flip:#x}"


def test_a_batch_cut_anywhere_is_not_whole() -> None:
    data = small_batch()
    assert not any(is_good(data[:end], 99) for end in range(len(data)))


def test_a_batch_of_another_life_of_the_file_is_not_whole() -> None:
    assert not is_good(small_batch(salt=98), 99)


def test_zeros_are_no_batch() -> None:
    assert decode_batch_header(bytes(1000), 0) is None


def test_a_header_that_counts_more_than_it_holds_is_none() -> None:
    header = BatchHeader(BATCH_BYTES + 10, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0)
    assert decode_batch_header(b"".join(encode_batch(0, header, [bytes(10)])), 0) is None
    header = BatchHeader(BATCH_BYTES, 0, 1, 0, 1, 0, 0, 0, 100, 0, 0)
    assert decode_batch_header(b"".join(encode_batch(0, header, [])), 0) is None


# --- segment headers


def test_a_segment_header_comes_back() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == SEGMENT_BYTES
    assert decode_segment_header(data + b"more") == HEADER


def test_a_segment_header_survives_any_one_flipped_byte() -> None:
    data = encode_segment_header(HEADER)
    for index in range(len(data)):
        damaged = data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :]
        assert decode_segment_header(damaged) == HEADER, f"byte {index}"


def test_a_segment_header_with_both_copies_damaged_is_none() -> None:
    data = bytearray(encode_segment_header(HEADER))
    half = len(data) // 2
    for index in range(half):
        damaged = bytes(data)
        for place in (index, half + index):
            damaged = damaged[:place] + bytes([damaged[place] ^ 0x55]) + damaged[place + 1 :]
        assert decode_segment_header(damaged) is None


def test_a_short_segment_header_is_none() -> None:
    data = encode_segment_header(HEADER)
    assert not any(decode_segment_header(data[:end]) for end in range(len(data)))


def test_a_newer_format_is_told_and_not_read() -> None:
    data = bytearray(encode_segment_header(HEADER)[: SEGMENT_BYTES // 2])
    data[8:12] = (2).to_bytes(4, "little")
    data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="log format 2 is newer than 1"):
        decode_segment_header(bytes(data * 2))
