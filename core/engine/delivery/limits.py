"""What the options `in_flight` and `rate` leave of the deliveries that a group could have.

Both are exact: one process hands out the messages of a queue. A group without limits pays two comparisons a dispatch.
"""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups
from curbstone.core.host import Timer
from curbstone.core.options import QueueOptions

IN_FLIGHT, RATE = "in_flight", "rate"

SPARE_MAX = 16

_TOKEN = 1_000_000
"""Buckets count in millionths of a token, so that the smallest rate fills them by a whole number in each ms."""


class Bucket:
    """A token bucket: in any span of t seconds it gives out at most `burst` + `rate` * t tokens, to the millisecond."""

    __slots__ = ("_at_ms", "_level", "_per_ms", "timer")

    def __init__(self, since_ms: int, options: QueueOptions) -> None:
        """It was empty at `since_ms`, and has been filling since then."""
        self._at_ms = since_ms
        self._level = 0
        self._per_ms = _per_ms(options)
        self.timer: Timer | None = None
        """Wakes the group when there is a token."""

    def tokens(self, now_ms: int, options: QueueOptions) -> int:
        """Return how many tokens there are. If the options have changed, they count from now on."""
        if now_ms > self._at_ms:
            self._level += (now_ms - self._at_ms) * self._per_ms
            self._at_ms = now_ms
        self._per_ms = _per_ms(options)
        burst = options.burst_or_default
        # A token is taken up to a ms after it is there. What came in meanwhile counts for the next one.
        self._level = min(self._level, burst * _TOKEN + self._per_ms - 1)
        return min(self._level // _TOKEN, burst)

    def take(self, tokens: int) -> None:
        """Take tokens; as a negative number, give some back."""
        self._level -= tokens * _TOKEN

    @property
    def due_ms(self) -> int:
        """Engine time when there is a token, if there is none."""
        return self._at_ms + -((self._level - _TOKEN) // self._per_ms)

    def cancel(self) -> None:
        """Wake nothing any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _per_ms(options: QueueOptions) -> int:
    return round(options.rate * _TOKEN / 1000)


class Limits:
    """The limits of the groups of one queue."""

    __slots__ = ("_buckets", "_state", "_sweep_at", "_wakeups")

    def __init__(self, state: QueueState, wakeups: Wakeups) -> None:
        self._state = state
        self._wakeups = wakeups
        self._buckets: dict[str, Bucket] | None = None
        """By group; None if there are none. A group without a bucket has one that has been filling since the start."""
        self._sweep_at = SPARE_MAX

    def allowed(self, group: str, in_flight: int, most: int) -> int:
        """Return how many of `most` messages may be handed out in a group that has so many in flight."""
        options = self._state.options
        if options.in_flight:
            most = min(most, options.in_flight - in_flight)
        if options.rate and most > 0:
            most = min(most, self._bucket(group).tokens(self._state.host.now_ms(), options))
        return max(most, 0)

    def held_back(self, group: str, in_flight: int, ready: int) -> tuple[int, str, int]:
        """Return how many ready messages are held back, by which option, and if `rate` holds all back, until when."""
        options = self._state.options
        allowed = self.allowed(group, in_flight, ready)
        if allowed == ready:
            return 0, "", 0
        if options.in_flight and allowed == max(options.in_flight - in_flight, 0):
            return ready - allowed, IN_FLIGHT, 0
        return ready - allowed, RATE, 0 if allowed else self._bucket(group).due_ms

    def took(self, group: str, deliveries: int) -> None:
        """Deliveries were handed out; as a negative number, they reached no client."""
        if self._state.options.rate:
            self._bucket(group).take(deliveries)

    def wake_when_allowed(self, group: str) -> None:
        """Wake a group when its rate allows a delivery again. A settle wakes one that has too many in flight."""
        if not self._state.options.rate:
            return
        bucket, host = self._bucket(group), self._state.host
        now_ms = host.now_ms()
        if not bucket.tokens(now_ms, self._state.options):
            bucket.cancel()
            bucket.timer = host.call_later(bucket.due_ms - now_ms, partial(self._wake, group, bucket))

    def _wake(self, group: str, bucket: Bucket) -> None:
        bucket.timer = None
        self._wakeups.wake(group)

    def end(self) -> None:
        """The queue ends."""
        for bucket in (self._buckets or {}).values():
            bucket.cancel()
        self._buckets = None

    def _bucket(self, group: str) -> Bucket:
        if self._buckets is None:
            self._buckets = {}
        bucket = self._buckets.get(group)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep(self._buckets)
            bucket = self._buckets[group] = Bucket(self._state.shared.started_ms, self._state.options)
        return bucket

    def _sweep(self, buckets: dict[str, Bucket]) -> None:
        """Forget buckets that are full, as a new one would be: undeclared groups come in any number over time."""
        now_ms, options = self._state.host.now_ms(), self._state.options
        for group, bucket in list(buckets.items()):
            if bucket.timer is None and bucket.tokens(now_ms, options) == options.burst_or_default:
                del buckets[group]
        self._sweep_at = 2 * len(buckets) + SPARE_MAX
