"""Limits the deliveries of a group by the options `in_flight` and `rate`.

Both limits are exact, because one process delivers the messages of a queue. Without limits they cost two comparisons
for each dispatch.
"""

from __future__ import annotations

from curbstone.core.engine.index.buckets import Bucket
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups

IN_FLIGHT, RATE = "in_flight", "rate"

SPARE_MAX = 16


class _GroupBucket(Bucket):
    __slots__ = ("is_awaited",)

    def __init__(self, since_ms: int, rate: float) -> None:
        super().__init__(since_ms, rate)
        self.is_awaited = False
        """Whether to wake the group when there is a token."""


class Limits:
    __slots__ = ("_buckets", "_state", "_sweep_at", "_wakeups")

    def __init__(self, state: QueueState, wakeups: Wakeups) -> None:
        self._state = state
        self._wakeups = wakeups
        self._buckets: dict[str, _GroupBucket] | None = None
        """By group; None if there are none. No bucket stands for one that has been filling since the start."""
        self._sweep_at = SPARE_MAX

    def allowed(self, group: str, in_flight: int, most: int) -> int:
        """Return how many of `most` messages may be delivered in a group that has `in_flight` in flight."""
        options = self._state.options
        if options.in_flight:
            most = min(most, options.in_flight - in_flight)
        if options.rate and most > 0:
            most = min(most, self._tokens(self._bucket(group)))
        return max(most, 0)

    def held_back(self, group: str, in_flight: int, ready: int) -> tuple[int, str, int]:
        """Return how many ready messages wait, for which option, and if all wait for `rate`, until when."""
        options = self._state.options
        allowed = self.allowed(group, in_flight, ready)
        if allowed == ready:
            return 0, "", 0
        if options.in_flight and allowed == max(options.in_flight - in_flight, 0):
            return ready - allowed, IN_FLIGHT, 0
        return ready - allowed, RATE, 0 if allowed else self._bucket(group).due_ms

    def took(self, group: str, deliveries: int) -> None:
        """Count deliveries; a negative number undoes that for deliveries that reached no client."""
        if self._state.options.rate:
            self._bucket(group).take(deliveries)

    def wake_when_allowed(self, group: str) -> None:
        """Wake a group when its rate allows a delivery again. If it has too many in flight, a settle wakes it."""
        if not self._state.options.rate:
            return
        bucket = self._bucket(group)
        if not self._tokens(bucket):
            bucket.is_awaited = True
            self._wakeups.at(bucket.due_ms)

    @property
    def next_due_ms(self) -> int | None:
        """Engine time of the next call of `wake_due`."""
        return min([each.due_ms for each in (self._buckets or {}).values() if each.is_awaited], default=None)

    def wake_due(self, now_ms: int) -> None:
        """Wake the groups whose rate allows a delivery again."""
        for group, bucket in (self._buckets or {}).items():
            if bucket.is_awaited and bucket.due_ms <= now_ms:
                bucket.is_awaited = False
                self._wakeups.wake(group)

    def _tokens(self, bucket: Bucket) -> int:
        options = self._state.options
        return bucket.tokens(self._state.host.now_ms(), options.rate, options.burst_or_default)

    def _bucket(self, group: str) -> _GroupBucket:
        if self._buckets is None:
            self._buckets = {}
        bucket = self._buckets.get(group)
        if bucket is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep(self._buckets)
            bucket = self._buckets[group] = _GroupBucket(self._state.shared.started_ms, self._state.options.rate)
        return bucket

    def _sweep(self, buckets: dict[str, _GroupBucket]) -> None:
        """Forget full buckets, as new ones would be full, too: any number of undeclared groups may exist over time."""
        options = self._state.options
        for group, bucket in list(buckets.items()):
            if not bucket.is_awaited and self._tokens(bucket) == options.burst_or_default:
                del buckets[group]
        self._sweep_at = 2 * len(buckets) + SPARE_MAX
