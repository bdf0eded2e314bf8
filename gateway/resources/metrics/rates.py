"""Moving averages of how fast the numbers of queues change, updated at each reading. It has no clock."""

from __future__ import annotations

from math import exp

STEP_MS = 1000
"""A reading sooner than this after another one updates nothing."""


class _Seen:
    __slots__ = ("at_ms", "per_ms", "values", "weight")

    def __init__(self, values: tuple[int, ...], now_ms: int) -> None:
        self.values = values
        self.at_ms = now_ms
        self.per_ms = (0.0,) * len(values)
        self.weight = 0.0
        """How much of the memory is filled, 0 to 1. The rate of a new queue is an average since its first reading."""


class Rates:
    """The rates of some numbers of each queue, by its uid."""

    def __init__(self, memory_ms: int) -> None:
        self._memory_ms = memory_ms
        """The time constant: after this time, a change counts about a third."""
        self._seen: dict[str, _Seen] = {}

    def update(self, uid: str, values: tuple[int, ...], now_ms: int) -> tuple[float, ...] | None:
        """Note the numbers, and return how much each changes per second; None for a queue that was just added."""
        seen = self._seen.get(uid)
        if seen is None:
            self._seen[uid] = _Seen(values, now_ms)
            return None
        passed_ms = now_ms - seen.at_ms
        if passed_ms >= STEP_MS:
            kept = exp(-passed_ms / self._memory_ms)
            seen.weight = seen.weight * kept + 1 - kept
            share = (1 - kept) / passed_ms
            seen.per_ms = tuple(
                [
                    rate * kept + (now - before) * share
                    for rate, now, before in zip(seen.per_ms, values, seen.values, strict=True)
                ]
            )
            seen.values, seen.at_ms = values, now_ms
        if not seen.weight:
            return None
        return tuple([1000 * rate / seen.weight for rate in seen.per_ms])

    def forget(self, uid: str) -> None:
        """Forget a deleted queue."""
        self._seen.pop(uid, None)


MEMORY_MS = 300_000


class Filling:
    """The growth of queues, by their uids."""

    def __init__(self) -> None:
        self._rates = Rates(MEMORY_MS)

    def update(self, uid: str, size: int, most: int, now_ms: int) -> float | None:
        """Note a queue's size, and return the seconds until it has `most` bytes; None if it does not grow."""
        rates = self._rates.update(uid, (size,), now_ms)
        if rates is None or rates[0] <= 0:
            return None
        return max(most - size, 0) / rates[0]

    def forget(self, uid: str) -> None:
        """Forget a deleted queue."""
        self._rates.forget(uid)
