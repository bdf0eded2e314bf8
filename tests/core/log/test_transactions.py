"""The bytes of the journal, which stay as earlier releases wrote them."""

from __future__ import annotations

import pytest

from curbstone.core.engine.log.format import Reason, Settled, TriesRecord
from curbstone.core.engine.write_queue import Release, Settle
from curbstone.core.message import Delivery
from curbstone.core.transactions.records import decode_records, encode_part, encode_record
from tests.kit.lab import message

FIRST, SECOND = 0xD4713D60, 0x6BAA9455

AS_1_0_WROTE_IT = bytes.fromhex(
    "a65181a0e0000000070000000000000002000000603d71d40000000002000000360000000100000021000000200000001b00"
    "000000000000000000000000000000000000000000006f6e651b000000010000000000000000000000000000000000000074"
    "776f01000000e803000000000000881300000000000000010000010000006704000000000000000100000002000000630000"
    "000000000000000000020000000100000000000000030000000700000000000000010000005594aa6b00000000010000001d"
    "0000000000000000000000000000001d00000000000000000000000000000000000000000000007468726565"
)
"""Transaction 7: two messages, a settle of four and a release for the first queue, a message for the second."""


def held(seq: int, tries: int = 0) -> Delivery:
    found = message(b"")
    found.seq = seq
    return Delivery(found, tries, 0)


def parts() -> list[bytes]:
    settle = Settle("", [held(seq) for seq in (1, 2, 3, 7)], Reason.COPIED, lambda _: None)
    release = Release("g", [held(4, 1)], 99, lambda _: None)
    messages = [message("one"), message("two", delay_ms=1000, ttl_ms=5000)]
    return [encode_part(FIRST, messages, [settle], [release]), encode_part(SECOND, [message("three")], [], [])]


def test_a_record_is_written_as_earlier_releases_wrote_it() -> None:
    assert encode_record(7, parts()) == AS_1_0_WROTE_IT


def test_journal_of_earlier_releases_is_read() -> None:
    (first, second), end, unsound = decode_records(AS_1_0_WROTE_IT + bytes(100))
    assert (end, unsound) == (len(AS_1_0_WROTE_IT), [])
    assert (first.tx, first.uid, second.tx, second.uid) == (7, FIRST, 7, SECOND)
    assert [(m.body, m.delay_ms, m.ttl_ms) for m in first.messages] == [(b"one", 0, 0), (b"two", 1000, 5000)]
    assert [bytes(m.body) for m in second.messages] == [b"three"]
    assert first.settled == [Settled("", Reason.COPIED, 1, 3), Settled("", Reason.COPIED, 7, 1)]
    assert first.released == [TriesRecord("g", 4, 1, 2, 99)]
    assert [first.data, second.data] == parts()


def test_record_can_lose_one_part_and_keep_the_others() -> None:
    ((second,), *_) = decode_records(encode_record(7, parts()[1:]))
    assert (second.tx, second.uid, second.data) == (7, SECOND, parts()[1])


def test_remains_behind_the_last_record_are_ignored() -> None:
    old, new = encode_record(8, parts()), encode_record(9, parts()[1:])
    recorded, end, unsound = decode_records(new + old)
    assert ([part.tx for part in recorded], end, unsound) == ([9], len(new), [])


@pytest.mark.parametrize("end", range(0, len(AS_1_0_WROTE_IT), 7))
def test_truncated_record_is_ignored(end: int) -> None:
    assert decode_records(AS_1_0_WROTE_IT[:end]) == ([], 0, [])


def test_damaged_record_is_reported_and_later_ones_are_read() -> None:
    """It ended the reading without a word, as if it were the last one and had never been synced."""
    records = [bytearray(encode_record(tx, parts())) for tx in (7, 8, 9)]
    first, size = len(records[0]), len(records[1])
    for place in (4 + 16, size // 2, size - 1):
        data = bytearray(b"".join(records))
        data[first + place] ^= 1
        recorded, end, unsound = decode_records(bytes(data))
        assert [part.tx for part in recorded] == [7, 7, 9, 9]
        assert (end, unsound) == (len(data), [(first, first + size, 8)])


def test_unsynced_record_over_earlier_data_is_no_damage() -> None:
    old = [encode_record(tx, parts()) for tx in (3, 4, 5)]
    new = bytearray(encode_record(9, parts()))
    new[-1] ^= 1
    for torn in (bytes(new) + old[1] + old[2], old[0][:-1] + b"x" + old[1] + old[2]):
        recorded, _, unsound = decode_records(encode_record(8, parts()) + torn)
        assert ([part.tx for part in recorded], unsound) == ([8, 8], [])
        assert decode_records(torn).unsound == []
