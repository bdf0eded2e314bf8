"""Plain counters: those of one queue, and those of the commits of all queues. Adapters and metrics read them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, fields

COMMIT_US_BOUNDS = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000),
)
"""Microseconds, from those of a write without a sync to those of a disk that is about to fail."""
COMMIT_MESSAGES_BOUNDS = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)


@dataclass(slots=True)
class Stats:
    """Counts of what has happened since the start, in one queue or in several together."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    purged: int = 0
    undone: int = 0
    """Messages that returned after they were acked, popped or purged."""
    lost: int = 0
    overflowed: int = 0
    """Messages that gave way to newer ones at the cap; those of declared groups are `lost`."""
    filtered: int = 0
    """Messages to events that the filters of its bindings left out."""
    duplicates: int = 0
    """Messages that were left out because another one had their unique name."""
    replaced: int = 0
    """Messages that later ones of their name replaced while they waited."""
    batches_ended: int = 0
    """Batches whose reports were sent."""
    batches_abandoned: int = 0
    """Batches that were dropped, because they lacked messages for a week."""
    refused: int = 0
    """Messages that were refused because there was no room for them."""
    commits: int = 0

    def add(self, other: Stats) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTS = tuple(field.name for field in fields(Stats))


class LastMinute:
    """Counts what has happened in the last minute, to the second."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, count: int, now_ms: int) -> None:
        """Count something that happens now."""
        self._forget(now_ms)
        second = now_ms // 1000
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))

    def last_minute(self, now_ms: int) -> int:
        self._forget(now_ms)
        return sum([count for _, count in self._seconds])

    def _forget(self, now_ms: int) -> None:
        while self._seconds and self._seconds[0][0] <= now_ms // 1000 - 60:
            self._seconds.popleft()


class Histogram:
    """Counts values by bounds: a value counts for the first bound that it does not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """A count for each bound, and one for values above all bounds."""
        self.sum = 0

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Commits:
    """The commits of all queues since the start, including queues that were deleted meanwhile."""

    __slots__ = ("failed", "journal_damage", "messages", "redo_bytes_kept", "syncs", "took_us")

    def __init__(self) -> None:
        self.took_us = Histogram(COMMIT_US_BOUNDS)
        """How long commits took, from handing one to a worker thread until the event loop heard that it is done."""
        self.messages = Histogram(COMMIT_MESSAGES_BOUNDS)
        """Messages published in each commit; 0 if it had only settles, releases or copies."""
        self.syncs = 0
        """How often commits were made durable. One sync may do it for the commits of many queues, or of an interval."""
        self.redo_bytes_kept = 0
        """Bytes of the redo files that a start could not replay completely, and has kept for repair."""
        self.journal_damage = 0
        """Stretches of the journal of transactions that a start could not read."""
        self.failed = 0
        """Commits that failed on the disk, so that nothing was confirmed; they are in no histogram."""
