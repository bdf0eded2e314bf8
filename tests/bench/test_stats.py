"""Percentiles of counted times, against what sorting every single time would give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import confirm_times, median_of, percentile, percentiles


def test_percentile_is_the_smallest_time_not_exceeded_by_that_share() -> None:
    times = [(10, 50), (20, 49), (30, 1)]
    assert percentile(times, 50) == 10
    assert percentile(times, 99) == 20
    assert percentile(times, 99.9) == 30


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 20)), min_size=1), st.floats(0.1, 100))
def test_counted_times_have_the_same_percentiles_as_single_times(times: list[tuple[int, int]], percent: float) -> None:
    single = sorted(time for time, count in times for _ in range(count))
    rank = next(index for index in range(1, len(single) + 1) if index >= percent / 100 * len(single))
    assert percentile(times, percent) == single[rank - 1]


def test_no_samples_give_no_percentiles() -> None:
    assert percentiles([]) is None
    with pytest.raises(ValueError, match="no times"):
        percentile([], 50)


def test_percentiles_are_in_milliseconds() -> None:
    found = percentiles([(1_500_000, 1)])
    assert found
    assert found.p50_ms == found.p999_ms == 1.5


def test_confirm_of_several_sends_is_timed_per_send() -> None:
    sent = [(10, 100), (15, 130)]
    confirmed = [(4, 110), (12, 140), (15, 150)]
    assert confirm_times(sent, confirmed) == [(10, 4), (40, 6), (10, 2), (20, 3)]


def test_read_without_confirms_adds_no_sample() -> None:
    assert confirm_times([(2, 100)], [(0, 105), (2, 110)]) == [(10, 2)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.data())
def test_every_send_gets_exactly_one_confirm_time(batches: list[int], data: st.DataObject) -> None:
    total = sum(batches)
    sent = [(sum(batches[: index + 1]), index) for index in range(len(batches))]
    cuts = sorted({*data.draw(st.lists(st.integers(1, total), max_size=10)), total})
    times = confirm_times(sent, [(count, 1000 + index) for index, count in enumerate(cuts)])
    assert sum(count for _, count in times) == total
    assert all(count > 0 for _, count in times)


def test_median_ignores_unknown_values() -> None:
    assert median_of([3.0, None, 1.0, 2.0]) == 2.0
    assert median_of([None]) is None
