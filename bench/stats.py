"""Latencies computed from counts instead of single messages: a window of confirms is one entry, not a thousand."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

Stamps = list[tuple[int, int]]
"""Pairs (cumulative count, time in ns). Both values increase."""

Weighted = list[tuple[int, int]]
"""Pairs (duration in ns, number of messages with this duration)."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50_ms: float
    p99_ms: float
    p999_ms: float


def confirm_times(sent: Stamps, confirmed: Stamps) -> Weighted:
    """Return the times from send to confirm. The k-th sent message must be the k-th confirmed one."""
    times: Weighted = []
    position = 0
    sends = iter(sent)
    sent_count, sent_at = next(sends, (0, 0))
    for confirmed_count, confirmed_at in confirmed:
        while position < confirmed_count:
            while sent_count <= position:
                sent_count, sent_at = next(sends)
            until = min(sent_count, confirmed_count)
            times.append((confirmed_at - sent_at, until - position))
            position = until
    return times


def percentile(times: Iterable[tuple[int, int]], percent: float) -> float:
    """Return the nearest-rank percentile in ns: the smallest time that at least `percent` % do not exceed."""
    ordered = sorted(times)
    total = sum(count for _, count in ordered)
    if total == 0:
        raise ValueError("no times")
    rank = percent / 100 * total
    passed = 0
    for nanoseconds, count in ordered:
        passed += count
        if passed >= rank:
            return nanoseconds
    return ordered[-1][0]


def percentiles(times: Weighted) -> Percentiles | None:
    if not times:
        return None
    p50, p99, p999 = (percentile(times, percent) / 1e6 for percent in (50, 99, 99.9))
    return Percentiles(p50, p99, p999)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
