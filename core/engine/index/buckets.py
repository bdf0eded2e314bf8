"""Token buckets, which bound deliveries a second."""

from __future__ import annotations

_TOKEN = 1_000_000
"""Buckets count in millionths of a token, so that the smallest rate fills them by a whole number in each ms."""


class Bucket:
    """A token bucket: in any t seconds it gives out at most `burst` + `rate` * t tokens, exact to the millisecond."""

    __slots__ = ("_at_ms", "_level", "_per_ms")

    def __init__(self, since_ms: int, rate: float) -> None:
        """It was empty at `since_ms`, and has been filling since then."""
        self._at_ms = since_ms
        self._level = 0
        self._per_ms = _per_ms(rate)

    def tokens(self, now_ms: int, rate: float, burst: int) -> int:
        """Return how many tokens there are. A changed rate or burst applies from now on."""
        if now_ms > self._at_ms:
            self._level += (now_ms - self._at_ms) * self._per_ms
            self._at_ms = now_ms
        self._per_ms = _per_ms(rate)
        # A token may be taken up to a ms after it is there. What was added since counts for the next one.
        self._level = min(self._level, burst * _TOKEN + self._per_ms - 1)
        return min(self._level // _TOKEN, burst)

    def take(self, tokens: int) -> None:
        """Take tokens; as a negative number, give some back."""
        self._level -= tokens * _TOKEN

    @property
    def due_ms(self) -> int:
        """Engine time when there is a token again."""
        return self._at_ms + -((self._level - _TOKEN) // self._per_ms)


def _per_ms(rate: float) -> int:
    return round(rate * _TOKEN / 1000)
