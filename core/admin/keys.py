"""Counts the messages of each key that wait or are in flight in a group, some keys in each turn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import nsmallest
from itertools import islice

from curbstone.core.engine.index.backlogs import Key
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.parts import Parts
from curbstone.core.values import FoundKeys, KeyCounts, KeyList

OUTRANKED_MAX = 1000


def count_keys(parts: Parts, limit: int, by_in_flight: bool, group: str, on_done: FoundKeys) -> None:
    """Look at the keys of a group, in this turn and in later ones. What changes meanwhile may be counted or not."""
    state = parts.state
    total = 0
    found: list[KeyCounts] = []
    """The keys to answer with, and some that others may yet outrank."""

    def rank(counts: KeyCounts) -> tuple[int, int, str]:
        first, second = counts.waiting, counts.in_flight
        return (-second, -first, counts.key) if by_in_flight else (-first, -second, counts.key)

    def count_all(counted: Group | None) -> Iterator[None]:
        """Count key by key; each step takes about as long as any other."""
        nonlocal total, found
        if counted is None or counted.keys is None:
            return
        for key in counted.keys.all():
            waiting = 0
            for first, last in [stretch for backlog in key.backlogs for stretch in backlog.stretches()]:
                for run in parts.index.runs.between(first, last + 1):
                    waiting += (run.pending(group) & run.part(first, last + 1)).bit_count()
                    yield
            if waiting or key.places_taken:
                total += 1
                found.append(KeyCounts(key.name.decode("utf-8", "replace"), waiting, key.places_taken, _next_ms(key)))
                if len(found) >= limit + OUTRANKED_MAX:
                    found = nsmallest(limit, found, key=rank)
            yield

    steps = count_all(parts.index.groups.get(group))

    def proceed(most: int) -> int:
        taken = sum(1 for _ in islice(steps, most))
        if taken < most:
            answer = state.ended() or KeyList(total, nsmallest(limit, found, key=rank))
            state.host.call_soon(partial(on_done, answer))
        return taken

    state.shared.slices.begin(proceed)


def _next_ms(key: Key) -> int:
    return key.bucket.due_ms if key.is_throttled and key.bucket is not None else 0
