"""Counts the messages of each key that wait or are in flight in a group, some keys in each turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import nsmallest
from itertools import islice

from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.rows import Key
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import KeyCounts, KeyList

OUTRANKED_MAX = 1000


class CountKeys:
    """One look at the keys of a group; it answers once. What changes meanwhile may be counted or not."""

    def __init__(
        self,
        parts: Parts,
        limit: int,
        by_in_flight: bool,
        group: str,
        on_done: Callable[[KeyList | CurbstoneError], None],
    ) -> None:
        self._state = parts.state
        self._runs = parts.index.runs
        self._limit = limit
        self._by_in_flight = by_in_flight
        self._on_done = on_done
        self._total = 0
        self._found: list[KeyCounts] = []
        """The keys to answer with, and some that others may yet outrank."""
        self._steps = self._count_all(parts.index.groups.get(group))

    def begin(self) -> None:
        """Count the keys, in this turn and in later ones."""
        self._state.shared.slices.begin(self._go_on)

    def _go_on(self, most: int) -> int:
        steps = sum(1 for _ in islice(self._steps, most))
        if steps < most:
            answer = self._state.ended() or KeyList(self._total, self._first())
            self._state.host.call_soon(partial(self._on_done, answer))
        return steps

    def _first(self) -> list[KeyCounts]:
        return nsmallest(self._limit, self._found, key=self._rank)

    def _rank(self, counts: KeyCounts) -> tuple[int, int, str]:
        first, second = counts.waiting, counts.in_flight
        return (-second, -first, counts.key) if self._by_in_flight else (-first, -second, counts.key)

    def _count_all(self, group: Group | None) -> Iterator[None]:
        """Count key by key; each step takes about as long as any other."""
        if group is None or group.keys is None:
            return
        for key in group.keys.all():
            waiting = 0
            for row in key.rows:
                for first, last in row.stretches():
                    for count in self._pending(group, first, last):
                        waiting += count
                        yield
            if waiting or key.held:
                self._total += 1
                self._found.append(KeyCounts(key.name.decode("utf-8", "replace"), waiting, key.held, _next_ms(key)))
                if len(self._found) >= self._limit + OUTRANKED_MAX:
                    self._found = self._first()
            yield

    def _pending(self, group: Group, first: int, last: int) -> Iterator[int]:
        """Yield for each run how many messages of a stretch are pending."""
        for run in self._runs.between(first, last + 1):
            yield (run.pending(group.name) & run.part(first, last + 1)).bit_count()


def _next_ms(key: Key) -> int:
    return key.bucket.due_ms if key.is_throttled and key.bucket is not None else 0
