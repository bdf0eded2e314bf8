"""The bytes of a segment: what is written returns, and no wrong byte goes unseen."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    Flag,
    Note,
    SegmentHeader,
    Settled,
    TriesRecord,
    UnknownFormat,
    batch_is_whole,
    decode_batch_header,
    decode_entries,
    decode_groups,
    decode_levels,
    decode_log_start,
    decode_notes,
    decode_segment_header,
    decode_seqs,
    decode_settled,
    decode_tries,
    encode_batch,
    encode_entries,
    encode_extras,
    encode_filler,
    encode_log_start,
    encode_note,
    encode_segment_header,
    encode_settled,
    encode_tries,
    entry_bytes,
    may_be_batch,
    runs_of,
    settled_bytes,
    time_of,
    tries_bytes_of,
)
from curbstone.core.message import Message
from curbstone.core.orders import Orders, orders_of

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
        groups = tuple(draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)))
        message.orders = orders_of(groups=groups, level=draw(st.sampled_from([0, 0, 1, 4, 6, 10])))
        message.seq = seq
        message.timestamp_ms = draw(st.integers(0, 1 << 50))
        message.expires_ms = draw(st.sampled_from([0, 1, 1 << 50]))
        seq += gap
        made.append(message)
    return made


def facts(message: Message) -> tuple[object, ...]:
    return (
        *(message.seq, message.body, message.headers, message.timestamp_ms),
        *(message.expires_ms, message.groups, message.level),
    )


@given(messages())
def test_messages_round_trip_with_the_announced_size(given_messages: list[Message]) -> None:
    parts: list[bytes] = []
    first = given_messages[0].seq
    flags = encode_entries(given_messages, first, parts)
    data = b"".join(parts)
    assert len(data) == sum(map(entry_bytes, given_messages))
    assert bool(flags & Flag.EXTRAS) == any(message.expires_ms or message.groups for message in given_messages)
    assert bool(flags & Flag.LEVELS) == any(message.level for message in given_messages)
    assert list(decode_levels(b"junk" + data, 4, len(given_messages))) == [each.level for each in given_messages]
    found = decode_entries(b"junk" + data, 4, len(given_messages), first)
    assert list(map(facts, found)) == list(map(facts, given_messages))
    sizes = [(message.seq, entry_bytes(message)) for message in given_messages]
    assert list(decode_seqs(b"junk" + data, 4, len(given_messages), first)) == sizes
    assert time_of(b"junk" + data, 4) == given_messages[0].timestamp_ms


@given(st.lists(st.tuples(GROUP, U64, U32, U32, U64), max_size=8))
def test_releases_round_trip(values: list[tuple[str, int, int, int, int]]) -> None:
    released = [TriesRecord(*value) for value in values]
    data = encode_tries(released)
    assert list(decode_tries(data, 0, len(data))) == released
    assert len(data) <= sum(tries_bytes_of(item.group, 1) for item in released)


def test_known_facts_are_distinguished_from_events() -> None:
    happened, known = TriesRecord("g", 1, 2, 3, 4), TriesRecord("", 5, 6, 7, 8)
    data = b"junk" + encode_tries([happened]) + encode_tries([known, known], state=True)
    assert list(decode_tries(data, 4, len(data))) == [happened, known, known]
    assert list(decode_tries(data, 4, len(data), with_state=False)) == [happened]


@pytest.mark.parametrize("group", ["", "g", "x" * 64])
def test_lists_have_the_announced_size(group: str) -> None:
    for count in range(1, 4):
        assert len(encode_tries([TriesRecord(group, 1, 1, 1, 1)] * count)) == tries_bytes_of(group, count)
        assert len(encode_settled(group, 1, [(1, 1)] * count)) == settled_bytes(group, count)


@given(st.lists(st.tuples(GROUP, st.integers(1, 5), st.lists(st.tuples(U64, U32), max_size=5)), max_size=4))
def test_settles_round_trip(lists: list[tuple[str, int, list[tuple[int, int]]]]) -> None:
    data = b"".join(encode_settled(group, reason, runs) for group, reason, runs in lists)
    expected = [Settled(group, reason, *run) for group, reason, runs in lists for run in runs]
    assert list(decode_settled(data, 0, len(data))) == expected


@given(st.sets(st.integers(0, 300), min_size=1))
def test_runs_of_seqs_cover_them_exactly(seqs: set[int]) -> None:
    runs = runs_of(list(seqs))
    assert [seq for first, count in runs for seq in range(first, first + count)] == sorted(seqs)
    assert all(before[0] + before[1] < after[0] for before, after in zip(runs, runs[1:], strict=False))


def test_notes_round_trip() -> None:
    data = encode_log_start(77) + encode_note(Note.DELIVERED, b"anything") + encode_note(Note.LOG_START, b"")
    expected = [(Note.LOG_START, (77).to_bytes(8, "little")), (Note.DELIVERED, b"anything"), (Note.LOG_START, b"")]
    assert list(decode_notes(b"junk" + data, 4, 4 + len(data))) == expected
    assert decode_log_start(expected[0][1]) == 77


def test_extras_are_encoded_only_if_present() -> None:
    assert encode_extras(Message(b"")) == b""
    extras = encode_extras(Message(b"", orders=Orders(groups=("a", "b"))))
    assert decode_groups(b"junk" + extras + b"more", 4, len(extras)) == ("a", "b")
    assert decode_groups(extras, 0, 8) == ()


def small_batch(salt: int = 99) -> bytes:
    """A batch with one of everything."""
    message = Message(b"the body", b"a:b\n", orders=Orders(groups=("g",)))
    message.seq, message.expires_ms = 41, 123
    entries: list[bytes] = []
    encode_entries([message], 41, entries)
    releases = encode_tries([TriesRecord("g", 40, 1, 2, 5)])
    settles = encode_settled("", 1, [(1, 39)])
    notes = encode_log_start(2)
    parts = [*entries, releases, settles, notes]
    sections = (len(releases), len(settles), len(notes))
    header = BatchHeader(BATCH_BYTES + sum(map(len, parts)), 1, 12, 1000, 41, 40, 0, 1, *sections)
    data = b"".join(encode_batch(salt, header, parts))
    assert decode_batch_header(data, 0) == header
    assert header.messages_bytes == entry_bytes(message)
    return data


def is_valid(data: bytes, salt: int) -> bool:
    header = decode_batch_header(data, 0)
    return header is not None and batch_is_whole(data, 0, header.length, salt)


def test_a_batch_is_whole() -> None:
    assert is_valid(small_batch(), 99)


def test_every_flipped_byte_of_a_batch_is_detected() -> None:
    data = small_batch()
    for index in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:index] + bytes([data[index] ^ flip]) + data[index + 1 :]
            assert not is_valid(damaged, 99), f"byte {index} ^ {flip:#x}"


def test_truncated_batch_is_invalid() -> None:
    data = small_batch()
    assert not any(is_valid(data[:end], 99) for end in range(len(data)))


def test_batch_of_an_earlier_use_of_the_file_is_invalid() -> None:
    assert not is_valid(small_batch(salt=98), 99)


def test_zeros_are_no_batch() -> None:
    assert decode_batch_header(bytes(1000), 0) is None


def test_header_with_wrong_counts_is_invalid() -> None:
    header = BatchHeader(BATCH_BYTES + 10, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0)
    assert decode_batch_header(b"".join(encode_batch(0, header, [bytes(10)])), 0) is None
    header = BatchHeader(BATCH_BYTES, 0, 1, 0, 1, 0, 0, 0, 100, 0, 0)
    assert decode_batch_header(b"".join(encode_batch(0, header, [])), 0) is None


@pytest.mark.parametrize("size", [BATCH_BYTES, BATCH_BYTES + 5, BATCH_BYTES + 6, 1000])
def test_filler_is_an_empty_batch(size: int) -> None:
    data = encode_filler(99, 12, size)
    assert data is not None and len(data) == size
    header = decode_batch_header(data, 0)
    assert header is not None and is_valid(data, 99)
    notes = bytes(max(size - BATCH_BYTES - 5, 0))
    assert header == BatchHeader(size, 0, 12, 0, 0, 0, 0, 0, 0, 0, size - BATCH_BYTES)
    assert list(decode_notes(data, BATCH_BYTES, size)) == ([(Note.FILLER, notes)] if size > BATCH_BYTES else [])


@pytest.mark.parametrize("size", [0, BATCH_BYTES - 1, BATCH_BYTES + 1, BATCH_BYTES + 4])
def test_filler_needs_room_for_a_note(size: int) -> None:
    assert encode_filler(99, 12, size) is None


@pytest.mark.parametrize(
    ("magic", "number", "may"),
    [(1, 12, True), (1, 11, False), (1, 13, True), (0, 12, True), (0, 11, False), (0, 13, False)],
)
def test_possible_batch_has_its_magic_or_number(magic: int, number: int, may: bool) -> None:
    data = bytearray(b"junk" + small_batch())
    data[4 + 4] ^= 0 if magic else 1
    data[4 + 16 : 4 + 24] = number.to_bytes(8, "little")
    assert may_be_batch(bytes(data), 4, 12) is may


def test_a_header_just_at_the_end_is_read_and_one_just_cut_is_not() -> None:
    header = BatchHeader(BATCH_BYTES, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0)
    data = b"junk" + b"".join(encode_batch(0, header, []))
    assert decode_batch_header(data, 4) == header
    assert decode_batch_header(data[:-1], 4) is None
    assert batch_is_whole(data, 4, BATCH_BYTES, 0)


@pytest.mark.parametrize(("version", "crc"), [(1, "6b10c63b"), (2, "96e2aa12")])
def test_bytes_of_a_format_do_not_change(version: int, crc: str) -> None:
    """Another version must continue reading them: whoever changes this test gives the format a new number."""
    header = HEADER._replace(format=version)
    assert encode_segment_header(header)[: SEGMENT_BYTES // 2].hex() == (
        f"43555242534547310{version}000000efbeaddebc9a785634120000070000000000000006000000000000"
        f"00e1100000000000000300000000000000e803000000000000f4010000000000000900000000000000{crc}"
    )
    assert decode_segment_header(encode_segment_header(header)) == header


def test_the_bytes_of_a_batch_are_the_same_in_both_formats() -> None:
    plain: list[bytes] = []
    assert not encode_entries([Message(b"B", b"h:v\n")], 0, plain)
    assert b"".join(plain).hex() == "1d0000000000000000000000000000000400000000000000683a760a42"
    assert small_batch().hex() == (
        "fe14474c42435448b7000000010000000c00000000000000e8030000000000002900000000000000"
        "280000000000000000000000000000000100000021000000140000000d0000002d0000000000000000000000"
        "0000000004000000000009007b0000000000000067613a620a74686520626f6479"
        "0001000001000000672800000000000000010000000200000005000000000000"
        "00010000000100000001000000000000002700000001080000000200000000000000"
    )


# --- segment headers


def test_segment_header_round_trips() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == SEGMENT_BYTES
    assert decode_segment_header(data + b"more") == HEADER


def test_a_segment_header_survives_any_one_flipped_byte() -> None:
    data = encode_segment_header(HEADER)
    for index in range(len(data)):
        damaged = data[:index] + bytes([data[index] ^ 0x55]) + data[index + 1 :]
        assert decode_segment_header(damaged) == HEADER, f"byte {index}"


def test_segment_header_with_both_copies_damaged_is_invalid() -> None:
    data = bytearray(encode_segment_header(HEADER))
    half = len(data) // 2
    for index in range(half):
        damaged = bytes(data)
        for place in (index, half + index):
            damaged = damaged[:place] + bytes([damaged[place] ^ 0x55]) + damaged[place + 1 :]
        assert decode_segment_header(damaged) is None


def test_short_segment_header_is_invalid() -> None:
    data = encode_segment_header(HEADER)
    assert not any(decode_segment_header(data[:end]) for end in range(len(data)))


def test_a_newer_format_is_reported_and_not_read() -> None:
    data = bytearray(encode_segment_header(HEADER)[: SEGMENT_BYTES // 2])
    data[8:12] = (3).to_bytes(4, "little")
    data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="log format 3 is newer than 2"):
        decode_segment_header(bytes(data * 2))


@pytest.mark.parametrize("sizes", [[70_000], [10, 70_000, 10], [70_000, 70_000, 1, 2], [10] * 500, [1000] * 100, [0]])
def test_large_body_is_written_without_copying(sizes: list[int]) -> None:
    """A message to a hundred queues was in memory a hundred times while it was written."""
    bodies = [bytes([65 + place % 26]) * size for place, size in enumerate(sizes)]
    parts: list[bytes] = []
    messages = [Message(body, b"k:v\n") for body in bodies]
    for seq, message in enumerate(messages):
        message.seq = seq
    encode_entries(messages, 0, parts)
    payload = b"".join(parts)
    header = BatchHeader(BATCH_BYTES + len(payload), 0, 1, 0, 0, 0, 0, len(messages), 0, 0, 0)
    buffers = encode_batch(7, header, parts)
    data = b"".join(buffers)
    assert batch_is_whole(data, 0, header.length, 7)
    assert [m.body for m in decode_entries(data, BATCH_BYTES, len(messages), 0)] == bodies
    for body in bodies:
        assert len(body) < 65_536 or any(buffer is body for buffer in buffers)


@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_long_list_of_scattered_settles_round_trips(count: int) -> None:
    runs = [(7 * number, 1 + number % 3) for number in range(1, count + 1)]
    data = encode_settled("g", 1, runs)
    assert len(data) == settled_bytes("g", count)
    assert [(each.first, each.span) for each in decode_settled(data, 0, len(data))] == runs
