"""Heaps of what is due when: an entry that no longer counts stays in its place until it is swept out."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import TypeVar

Key = TypeVar("Key", int, str)

STALE_MAX = 64


def note(
    heap: list[tuple[int, Key]], due_ms: int, key: Key, most: int, current: Callable[[], list[tuple[int, Key]]]
) -> None:
    """Add an entry; `current` returns those that count, it included, which are at most `most`.

    It sweeps so rarely that it costs a constant for each.
    """
    heappush(heap, (due_ms, key))
    sweep(heap, most, current)


def sweep(heap: list[tuple[int, Key]], most: int, current: Callable[[], list[tuple[int, Key]]]) -> None:
    """Keep only the entries that count where many do not; see `note`."""
    if len(heap) > 2 * most + STALE_MAX:
        heap[:] = current()
        heapify(heap)
