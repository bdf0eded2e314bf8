"""Heaps of times when something is due. A stale entry stays in the heap until a sweep removes it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeVar

from curbstone.core.engine.index.runs import Run, Runs
from curbstone.core.engine.turns import Wakeups

Key = TypeVar("Key", int, str)

STALE_MAX = 64
RUNS_AT_ONCE = 4
"""In how many runs messages expire in one turn."""


def note(
    heap: list[tuple[int, Key]], due_ms: int, key: Key, most: int, current: Callable[[], list[tuple[int, Key]]]
) -> None:
    """Add an entry. `current` returns the valid entries, with this one; there are at most `most` of them.

    Sweeps are so rare that the average cost of an entry is constant.
    """
    heappush(heap, (due_ms, key))
    sweep(heap, most, current)


def sweep(heap: list[tuple[int, Key]], most: int, current: Callable[[], list[tuple[int, Key]]]) -> None:
    """Remove the stale entries if there are many; see `note`."""
    if len(heap) > 2 * most + STALE_MAX:
        heap[:] = current()
        heapify(heap)


class Expiries:
    """For each run, when the first of its messages expires. `delivery.ttl` then ends the message."""

    __slots__ = ("_wakeups", "_due", "_runs")

    def __init__(self, runs: Runs, wakeups: Wakeups) -> None:
        self._runs = runs
        self._wakeups = wakeups
        self._due: list[tuple[int, int]] = []

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def note(self, run: Run, expires_ms: int) -> None:
        """Note that a message of a run expires at `expires_ms`."""
        self._runs.any_expires = True
        if not run.expires_ms or expires_ms < run.expires_ms:
            run.expires_ms = expires_ms
            note(self._due, expires_ms, run.first, len(self._runs), self._current)
            self._wakeups.at(expires_ms)

    def take_due(self, now_ms: int) -> list[int]:
        """Remove and return the first seqs of some runs with expired messages. The runs may no longer exist."""
        seqs: list[int] = []
        while self._due and self._due[0][0] <= now_ms and len(seqs) < RUNS_AT_ONCE:
            seqs.append(heappop(self._due)[1])
        return seqs

    def sweep(self) -> None:
        sweep(self._due, len(self._runs), self._current)

    def _current(self) -> list[tuple[int, int]]:
        return [(run.expires_ms, run.first) for run in self._runs if run.expires_ms]
