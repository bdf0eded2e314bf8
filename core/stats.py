"""Plain counters: of one queue, and of the commits of all. Adapters and metrics read them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields

COMMIT_US_BOUNDS = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000),
)
"""Microseconds: from a write that no sync follows to a disk that is about to fail."""
COMMIT_MESSAGES_BOUNDS = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)


@dataclass(slots=True)
class Stats:
    """What has happened in one queue since the start, or in several together."""

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
    """Messages that came back after they were acked, popped or purged."""
    lost: int = 0
    overflowed: int = 0
    """Messages that gave way to newer ones at the cap; those of declared groups are `lost`."""
    commits: int = 0

    def add(self, other: Stats) -> None:
        """Add the counts of another queue."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTS = tuple(field.name for field in fields(Stats))


class Histogram:
    """How often values fell between bounds: the first one that a value does not exceed is its own."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """A number for each bound, and one for what is larger than all."""
        self.sum = 0

    def add(self, value: int) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)


class Commits:
    """The commits of all queues since the start, also of those deleted meanwhile."""

    __slots__ = ("failed", "messages", "syncs", "took_us")

    def __init__(self) -> None:
        self.took_us = Histogram(COMMIT_US_BOUNDS)
        """From handing a batch to a disk thread until the event loop heard that it is written (and synced)."""
        self.messages = Histogram(COMMIT_MESSAGES_BOUNDS)
        """Messages published in a commit; 0 in one of nothing but settles, releases or copies."""
        self.syncs = 0
        """How often commits were made durable: one each with `always`, one an interval of many with `interval`."""
        self.failed = 0
        """Commits that confirmed nothing because the disk refused; they are in no histogram."""
