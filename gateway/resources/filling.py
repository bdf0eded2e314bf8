"""How long until queues are full: how fast each has grown of late, as often as somebody asks. It knows no clock."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

MEMORY_MS = 300_000
"""How fast older growth counts less: after this time about a third."""
STEP_MS = 1000
"""Looks that come sooner than this after another one learn nothing."""


class _Seen(NamedTuple):
    at_ms: int
    size: int
    bytes_per_ms: float
    weight: float
    """How much of the memory is filled, 0 to 1: the rate of a queue that was just met is of the time since."""


class Filling:
    """The growth of queues by their uids."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, uid: str, size: int, cap: int, now_ms: int) -> float | None:
        """Take in how large a queue is, and return the seconds until it is at its cap; None if it does not grow."""
        seen = self._seen.get(uid)
        if seen is None:
            self._seen[uid] = _Seen(now_ms, size, 0, 0)
            return None
        passed_ms = now_ms - seen.at_ms
        if passed_ms >= STEP_MS:
            kept = exp(-passed_ms / MEMORY_MS)
            weight = seen.weight * kept + 1 - kept
            grown = (size - seen.size) / passed_ms * (1 - kept)
            seen = _Seen(now_ms, size, seen.bytes_per_ms * kept + grown, weight)
            self._seen[uid] = seen
        if not seen.weight or seen.bytes_per_ms <= 0:
            return None
        return max(cap - size, 0) / (seen.bytes_per_ms / seen.weight) / 1000

    def forget(self, uid: str) -> None:
        """The queue is gone."""
        self._seen.pop(uid, None)
