"""Heaps of times when something is due. An entry that no longer counts stays in the heap until it is swept out."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import TypeVar

Key = TypeVar("Key", int, str)

STALE_MAX = 64


def note(
    heap: list[tuple[int, Key]], due_ms: int, key: Key, most: int, current: Callable[[], list[tuple[int, Key]]]
) -> None:
    """Add an entry. `current` returns the entries that count, this one included; there are at most `most` of them.

    Sweeping is rare enough that on average each entry costs a constant.
    """
    heappush(heap, (due_ms, key))
    sweep(heap, most, current)


def sweep(heap: list[tuple[int, Key]], most: int, current: Callable[[], list[tuple[int, Key]]]) -> None:
    """Remove the entries that do not count, if there are many of them; see `note`."""
    if len(heap) > 2 * most + STALE_MAX:
        heap[:] = current()
        heapify(heap)
