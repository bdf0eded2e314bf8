"""The table of facts: when a fact is noted, when again, and when it is forgotten."""

from __future__ import annotations

import struct
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from curbstone.core.batches import ID_BYTES_MAX, Tally
from curbstone.core.engine.facts.facts import EMPTY, BatchFacts, Changes, Facts, put
from curbstone.core.engine.facts.kinds import (
    KINDS,
    Dedup,
    Kind,
    Loss,
    decode_dedup,
    decode_loss,
    decode_producer,
    decode_seq,
    decode_staged,
    encode_loss,
    encode_named,
    encode_producer,
    encode_seq,
    encode_staged,
    encode_tally,
    staged_key,
)
from curbstone.core.engine.log.format import Note, decode_notes
from curbstone.core.engine.log.room import Room
from curbstone.core.options import MIB
from curbstone.core.values import LastNumber

pytestmark = pytest.mark.source


class Bench:
    """The facts of a queue that has declared some groups, and a clock."""

    def __init__(self, *groups: str, cap: int = MIB) -> None:
        self.now_ms = 1000
        self.stats = SimpleNamespace(lost=0)
        self.room = Room(cap, 0)
        state = SimpleNamespace(
            host=SimpleNamespace(now_ms=lambda: self.now_ms),
            meta=SimpleNamespace(groups=dict.fromkeys(groups, 1)),
            options=SimpleNamespace(cap=cap),
            stats=self.stats,
        )
        self.facts = Facts(cast(Any, state), self.room)

    def pending(self, *new: tuple[Note, bytes], log_start: int = 0) -> BatchFacts:
        changes: Changes = {}
        for note, value in new:
            put(changes, note, value)
        return self.facts.pending(changes, log_start)

    def log(self, segment: int, *new: tuple[Note, bytes], log_start: int = 0) -> None:
        self.facts.logged(self.pending(*new, log_start=log_start), segment)

    def is_full(self, note: Note) -> bool:
        self.facts.forget_ended(note)
        return self.facts.count(note) >= self.facts.most(note)

    def losses(self, log_start: int = 0) -> dict[str, Loss]:
        """Return the losses that the next batch notes."""
        data = self.pending(log_start=log_start).encoded
        noted = [(value[16:].decode(), decode_loss(value)) for _, value in decode_notes(data, 0, len(data))]
        assert len(noted) == len(dict(noted))
        return dict(noted)


def dedup(number: int, end_ms: int) -> bytes:
    return Dedup(end_ms, number, 1, b"%016d" % number, bytes(16)).encode()


def producer(number: int, time_ms: int) -> bytes:
    return encode_producer(b"%016d" % number, LastNumber(1, 1, time_ms))


# --- each kind


def test_facts_round_trip_and_their_key_is_in_their_bytes() -> None:
    group = "a.group"
    seq = encode_seq(group, 1 << 40)
    assert (decode_seq(seq), seq[KINDS[Note.DELIVERED].key], seq[KINDS[Note.ACKED].key]) == (
        1 << 40,
        b"a.group",
        b"a.group",
    )
    loss = encode_loss(group, Loss(1 << 41, 9))
    assert (decode_loss(loss), loss[KINDS[Note.LOSS].key]) == (Loss(1 << 41, 9), b"a.group")
    assert (decode_seq(None), decode_loss(None), decode_staged(None), decode_producer(None)) == (0, Loss(), 0, None)
    staged = encode_staged(77, 5)
    assert (decode_staged(staged), staged[KINDS[Note.STAGED].key]) == (5, staged_key(77))
    known = Dedup(1 << 42, 3, 2, b"h" * 16, b"d" * 16)
    assert (decode_dedup(known.encode()), known.encode()[KINDS[Note.KEY].key]) == (known, b"h" * 16)
    last = LastNumber(4, 5, 6)
    assert decode_producer(encode_producer(b"p" * 16, last)) == last
    assert encode_producer(b"p" * 16, last)[KINDS[Note.PRODUCER].key] == b"p" * 16


def test_facts_have_the_bytes_that_the_first_release_wrote() -> None:
    assert encode_seq("g", 2) == struct.pack("<Q", 2) + b"g"
    assert encode_loss("g", Loss(2, 3)) == struct.pack("<QQ", 2, 3) + b"g"
    assert encode_staged(2, 3) == struct.pack("<QQ", 2, 3)
    assert dedup(7, 9) == struct.pack("<QQI16s16s", 9, 7, 1, b"%016d" % 7, bytes(16))
    assert producer(7, 9) == struct.pack("<16sQQQ", b"%016d" % 7, 1, 1, 9)


@pytest.mark.parametrize("note", list(KINDS))
def test_the_room_of_a_fact_suffices_for_its_note(note: Note) -> None:
    bench = Bench()
    named = encode_named(1, True, 1, bytes(16))
    values = {Note.KEY: dedup(1, 2000), Note.PRODUCER: producer(1, 1), Note.STAGED: encode_staged(1, 1)}
    largest = encode_tally(bytes(16), Tally("b" * ID_BYTES_MAX, "q" * 200))
    value = {**values, Note.NAME: named, Note.BATCH: largest}.get(note)
    if value is None:
        assert KINDS[note].room == 0, "these are few"
    else:
        assert len(bench.pending((note, value)).encoded) <= KINDS[note].room


# --- when they are noted


def test_nothing_is_noted_while_nothing_has_changed() -> None:
    bench = Bench("g")
    assert bench.pending() is bench.pending(log_start=100) is EMPTY


def test_a_fact_is_noted_once_and_again_when_the_segment_with_its_note_is_dropped() -> None:
    bench = Bench("g", "h")
    bench.facts.lose("g", 3, 10)
    assert bench.losses() == {"g": Loss(10, 3)}
    bench.log(4)
    assert bench.losses() == bench.losses(4) == {}
    assert bench.losses(5) == {"g": Loss(10, 3)}
    bench.log(9, log_start=5)
    assert bench.losses(9) == {}
    bench.facts.lose("h", 1, 12)
    assert bench.losses(9) == {"h": Loss(12, 1)}
    bench.facts.lose("g", 1, 12)
    assert bench.losses(9) == {"g": Loss(12, 4), "h": Loss(12, 1)}


def test_failed_commit_leaves_only_changed_facts_to_note() -> None:
    bench = Bench("g")
    bench.facts.ack("g", 7)
    failed = bench.pending((Note.KEY, dedup(1, 2000)))
    assert (list(failed.changed), list(failed.new)) == ([Note.ACKED], [Note.KEY])
    assert bench.facts.get(Note.KEY, b"%016d" % 1) is None
    assert bench.facts.acked("g") == 7
    again = bench.pending()
    assert (list(again.changed), list(again.new)) == ([Note.ACKED], [])


def test_fact_changed_while_being_written_is_noted_again() -> None:
    bench = Bench("g")
    bench.facts.ack("g", 7)
    under_way = bench.pending()
    bench.facts.ack("g", 8)
    bench.facts.logged(under_way, 4)
    assert decode_seq(bench.facts.get(Note.ACKED, b"g")) == 8
    assert [*bench.pending().changed[Note.ACKED]] == [b"g"]
    bench.log(5)
    assert bench.pending(log_start=5) is EMPTY


def test_logged_facts_are_not_rewritten_after_a_restart() -> None:
    bench = Bench("g", "anew")
    for name in ("g", "gone", "anew"):
        bench.facts.recover(Note.LOSS, encode_loss(name, Loss(10, 3)), 4, {"anew"})
    assert bench.facts.loss("g") == Loss(10, 3)
    assert bench.facts.loss("gone") == bench.facts.loss("anew") == Loss()
    assert bench.losses(4) == {"anew": Loss(), "gone": Loss()}, "the log still says otherwise of these"


def test_later_note_of_a_recreated_group_wins() -> None:
    bench = Bench("anew")
    bench.facts.recover(Note.LOSS, encode_loss("anew", Loss(10, 3)), 4, {"anew"})
    bench.facts.recover(Note.LOSS, encode_loss("anew", Loss(20, 1)), 5, ())
    assert bench.facts.loss("anew") == Loss(20, 1)
    assert bench.losses(5) == {}


def test_unknown_and_later_notes_are_skipped() -> None:
    bench = Bench()
    for number in (Note.LOG_START, Note.FILLER, 99):
        bench.facts.recover(number, b"anything", 4, ())
    assert bench.pending(log_start=100) is EMPTY


# --- losses


def test_losses_add_up_and_their_floor_never_falls() -> None:
    bench = Bench("g", "h")
    bench.facts.lose("g", 3, 10)
    bench.facts.lose("g", 2, 5)
    bench.facts.lose("h", 1, 7)
    assert (bench.facts.loss("g"), bench.facts.loss("h")) == (Loss(10, 5), Loss(7, 1))
    assert bench.stats.lost == 6


def test_no_loss_and_undeclared_groups_are_not_noted() -> None:
    bench = Bench("g")
    bench.facts.lose("g", 0, 10)
    bench.facts.lose("stranger", 3, 10)
    assert bench.facts.loss("g") == bench.facts.loss("stranger") == Loss()
    assert bench.losses(1) == {}
    assert bench.stats.lost == 0


# --- when they are forgotten


def test_removed_group_is_noted_once_as_empty() -> None:
    bench = Bench("g")
    bench.facts.lose("g", 3, 10)
    bench.log(4)
    bench.facts.forget_group("g")
    assert bench.facts.loss("g") == Loss()
    assert bench.losses() == {"g": Loss()}
    bench.log(5)
    assert bench.losses(100) == {} and bench.facts.count(Note.LOSS) == 0


def test_group_removed_during_its_first_note_is_noted_as_empty() -> None:
    bench = Bench("g")
    bench.facts.lose("g", 3, 10)
    under_way = bench.pending()
    bench.facts.forget_group("g")
    bench.facts.logged(under_way, 4)
    assert bench.facts.loss("g") == Loss() and bench.losses() == {"g": Loss()}
    bench.log(5)
    assert bench.losses(100) == {}


def test_fact_removed_while_being_repeated_stays_removed() -> None:
    bench = Bench()
    bench.log(4, (Note.STAGED, encode_staged(77, 5)))
    under_way = bench.pending(log_start=5)
    assert len(under_way.repeated[Note.STAGED]) == 1
    bench.facts.forget(Note.STAGED, staged_key(77))
    bench.facts.logged(under_way, 9)
    assert bench.facts.get(Note.STAGED, staged_key(77)) is None
    assert bench.room.notes_bytes == 0


def test_only_retained_facts_count_as_reserved_bytes() -> None:
    bench = Bench()
    for number in range(5):
        bench.log(1, (Note.STAGED, encode_staged(number, 5)))
    assert bench.room.notes_bytes == 5 * KINDS[Note.STAGED].room
    bench.facts.keep_only(Note.STAGED, {staged_key(1), staged_key(3)})
    assert [number for number in range(5) if bench.facts.get(Note.STAGED, staged_key(number))] == [1, 3]
    assert bench.room.notes_bytes == 2 * KINDS[Note.STAGED].room


def test_a_fact_that_has_ended_is_neither_found_nor_repeated() -> None:
    bench = Bench()
    bench.log(1, (Note.KEY, dedup(1, 2000)), (Note.KEY, dedup(2, 3000)))
    bench.now_ms = 2000
    assert bench.facts.get(Note.KEY, b"%016d" % 1) is None
    assert [*bench.pending(log_start=2).repeated[Note.KEY]] == [b"%016d" % 2]
    bench.facts.forget_ended(Note.KEY)
    assert bench.facts.count(Note.KEY) == 1 and bench.room.notes_bytes == KINDS[Note.KEY].room


def test_non_evictable_facts_are_refused_at_the_limit_until_they_end() -> None:
    bench = Bench(cap=10 * 1024)
    for number in range(10):
        assert not bench.is_full(Note.KEY)
        bench.log(1, (Note.KEY, dedup(number, 2000 + number)))
    assert bench.is_full(Note.KEY)
    bench.now_ms = 2000
    assert not bench.is_full(Note.KEY)


def test_oldest_evictable_fact_is_dropped() -> None:
    bench = Bench(cap=3 * 4096)
    for number in range(3):
        bench.log(1, (Note.PRODUCER, producer(number, 1000 + number)))
    bench.log(1, (Note.PRODUCER, producer(0, 2000)))
    bench.log(1, (Note.PRODUCER, producer(3, 3000)))
    assert [number for number in range(4) if bench.facts.get(Note.PRODUCER, b"%016d" % number)] == [0, 2, 3]
    assert bench.room.notes_bytes == 3 * KINDS[Note.PRODUCER].room


def test_new_kind_of_fact_needs_only_a_table_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the open batches of messages: each with a count that changes, a limit, and an end if nobody continues."""

    def counted(name: str, end_ms: int, count: int) -> bytes:
        return struct.pack("<QQ", end_ms, count) + name.encode()

    end_ms = lambda value: int.from_bytes(value[:8], "little")  # noqa: E731
    monkeypatch.setitem(KINDS, Note.FILLER, Kind(slice(16, None), room=40, end_ms=end_ms, most=2))
    bench = Bench()
    bench.facts.set(Note.FILLER, counted("b", 2000, 1))
    bench.log(4)
    bench.facts.set(Note.FILLER, counted("b", 3000, 2))
    assert bench.facts.get(Note.FILLER, b"b") == counted("b", 3000, 2)
    bench.log(5)
    assert bench.pending(log_start=5) is EMPTY and len(bench.pending(log_start=6).repeated) == 1
    bench.log(6, (Note.FILLER, counted("c", 2500, 1)))
    assert bench.is_full(Note.FILLER) and bench.room.notes_bytes == 80
    bench.now_ms = 2500
    assert not bench.is_full(Note.FILLER) and bench.room.notes_bytes == 40
    bench.facts.set(Note.FILLER, counted("b", 7000, 3))
    bench.now_ms = 3000
    assert not bench.is_full(Note.FILLER) and bench.facts.get(Note.FILLER, b"b") == counted("b", 7000, 3)
    bench.log(6)
    bench.facts.set(Note.FILLER, counted("d", 9000, 1))
    under_way = bench.pending()
    bench.facts.forget(Note.FILLER, b"d")
    bench.facts.logged(under_way, 7)
    assert bench.facts.get(Note.FILLER, b"d") is None and bench.pending() is EMPTY
    again = Bench()
    again.facts.recover(Note.FILLER, counted("b", 3000, 2), 5, ())
    again.facts.forget(Note.FILLER, b"b")
    assert again.facts.get(Note.FILLER, b"b") is None and again.room.notes_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_facts_of_dropped_segments_are_found_first(seed: int) -> None:
    """They are looked for in the order of their segments, so that a drop does not look at all facts."""
    print(f"seed {seed}")
    rng = Random(seed)
    bench = Bench()
    start = 1
    for segment in range(1, 60):
        new: Changes = {}
        for _ in range(rng.randrange(5)):
            put(new, Note.PRODUCER, encode_producer(rng.randbytes(1), LastNumber(segment, segment, 0)))
        start = rng.randrange(start, segment + 1)
        facts = bench.facts.pending(new, start if rng.random() < 0.5 else 0)
        old = {key for key, fact in bench.facts._known.get(Note.PRODUCER, {}).items() if fact[1] < start}
        assert not facts.repeated or {*facts.repeated[Note.PRODUCER]} == old
        bench.facts.logged(facts, segment)
        known = [fact[1] for fact in bench.facts._known.get(Note.PRODUCER, {}).values()]
        assert known == sorted(known)
