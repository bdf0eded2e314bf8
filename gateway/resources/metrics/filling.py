"""How long it takes until queues are full, if they go on growing as in the last minutes."""

from __future__ import annotations

from curbstone.gateway.resources.metrics.rates import Rates

MEMORY_MS = 300_000


class Filling:
    """The growth of queues, by their uids."""

    def __init__(self) -> None:
        self._rates = Rates(MEMORY_MS)

    def look(self, uid: str, size: int, most: int, now_ms: int) -> float | None:
        """Note a queue's size, and return the seconds until it has `most` bytes; None if it does not grow."""
        rates = self._rates.look(uid, (size,), now_ms)
        if rates is None or rates[0] <= 0:
            return None
        return max(most - size, 0) / rates[0]

    def forget(self, uid: str) -> None:
        """Forget a queue that is gone."""
        self._rates.forget(uid)
