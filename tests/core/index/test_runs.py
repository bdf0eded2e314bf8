"""The index of what is pending: runs stay apart, sorted and counted."""

from __future__ import annotations

from random import Random

import pytest

from curbstone.core.engine.index.runs import RUN_BYTES_MAX, RUN_SPAN_MAX, Run, Runs, ranges_of, seqs_of
from curbstone.core.engine.log.commit import Segment


def segment(number: int = 1) -> Segment:
    return Segment(number, f"{number}.seg", 0, 0, 0)


def filled() -> tuple[Runs, list[Run]]:
    """Runs 1-3, 10-12 and 20-20, each in a segment of its own."""
    runs = Runs()
    made = []
    for number, (first, count) in enumerate([(1, 3), (10, 3), (20, 1)]):
        run, is_new = runs.append(first, (1 << count) - 1, segment(number), 0, 100, 50)
        assert is_new
        run.set_pending("", (1 << count) - 1)
        made.append(run)
    return runs, made


@pytest.mark.parametrize(
    ("seq", "holding", "following"),
    [(0, None, 0), (1, 0, 0), (3, 0, 0), (4, None, 1), (9, None, 1), (10, 1, 1), (12, 1, 1), (13, None, 2)]
    + [(20, 2, 2), (21, None, None)],
)
def test_a_run_is_found_by_any_of_its_seqs_or_as_the_next(seq: int, holding: int | None, following: int | None) -> None:
    runs, made = filled()
    assert runs.find(seq) is (None if holding is None else made[holding])
    assert runs.at_or_after(seq) is (None if following is None else made[following])


def test_messages_that_follow_in_the_same_segment_join_the_last_run() -> None:
    runs, place = Runs(), segment()
    first, _ = runs.append(1, 0b111, place, 0, 100, 60)
    joined, is_new = runs.append(4, 0b11, place, 100, 200, 40)
    assert joined is first and not is_new
    assert (first.first, first.last, first.offset, first.end, first.bytes_live) == (1, 5, 0, 200, 100)
    assert place.runs == 1 and runs.bytes_live == 100


@pytest.mark.parametrize(
    ("first_seq", "end"), [(RUN_SPAN_MAX + 5, 200), (4, RUN_BYTES_MAX + 1)], ids=["too many seqs", "too many bytes"]
)
def test_a_run_that_would_become_too_long_is_followed_by_another(first_seq: int, end: int) -> None:
    runs, place = Runs(), segment()
    runs.append(1, 0b111, place, 0, 100, 60)
    _, is_new = runs.append(first_seq, 1, place, 100, end, 40)
    assert is_new and place.runs == 2 and len(runs) == 2


@pytest.mark.parametrize(("seq", "end", "fits"), [(RUN_SPAN_MAX, 0, True), (RUN_SPAN_MAX + 1, 0, False), (4, 1, False)])
def test_run_is_filled_exactly_to_its_limit(seq: int, end: int, fits: bool) -> None:
    runs, place = Runs(), segment()
    run, _ = runs.append(1, 0b111, place, 500, 600, 60)
    _, is_new = runs.append(seq, 1, place, 600, 500 + RUN_BYTES_MAX + end, 40)
    assert is_new is not fits
    assert run.last == (seq if fits else 3)


def test_a_new_run_has_no_time_and_never_expires() -> None:
    run = Run(1, 4, 0, segment(), 0, 10, 10)
    assert (run.time_ms, run.expires_ms, run.naming, run.bits, run.messages) == (0, 0, 0, 0, None)


def test_a_dropped_run_leaves_its_segment_and_the_count_of_bytes() -> None:
    runs, made = filled()
    runs.drop(made[1])
    assert [run.first for run in runs] == [1, 20]
    assert made[1].segment.runs == 0 and not made[1].is_indexed
    assert runs.bytes_live == 100 and made[1].bytes_live == 0
    assert runs.find(11) is None


def test_a_moved_run_counts_in_its_new_segment() -> None:
    runs, made = filled()
    new = segment(9)
    runs.move(made[0], new, 5, 25, 20)
    assert runs.in_segment(new) == [made[0]]
    assert made[0].bytes_live == 20 and runs.bytes_live == 120


def test_shrinking_never_goes_below_nothing() -> None:
    runs, made = filled()
    runs.shrink(made[0], 1000)
    assert made[0].bytes_live == 0 and runs.bytes_live == 100
    runs.grow(made[0], 7)
    assert runs.bytes_live == 107 and made[0].bytes_live == 7


def test_an_inserted_run_finds_its_place() -> None:
    runs, _ = filled()
    run = Run(5, 6, 0b11, segment(7), 0, 10, 10)
    assert not run.is_indexed
    runs.insert(run)
    assert run.is_indexed and run.segment.runs == 1
    assert runs.bytes_live == 160
    assert [run.first for run in runs] == [1, 5, 10, 20]
    found = runs.find(6)
    assert found is not None and found.first == 5


def test_a_message_is_live_while_any_group_has_it_pending() -> None:
    run = Run(1, 4, 0, segment(), 0, 10, 10)
    run.set_pending("", 0b0001)
    run.set_pending("a", 0b0110)
    assert run.live() == 0b0111
    run.set_pending("a", 0)
    run.set_pending("never there", 0)
    assert run.live() == 0b0001
    assert run.pending("a") == run.pending("b") == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_is_its_seqs_and_its_ranges(seed: int) -> None:
    dice = Random(seed)
    seqs = sorted(dice.sample(range(100, 400), dice.randrange(300)))
    bits = sum(1 << (seq - 100) for seq in seqs)
    assert list(seqs_of(100, bits)) == seqs
    assert [seq for first, count in ranges_of(100, bits) for seq in range(first, first + count)] == seqs
