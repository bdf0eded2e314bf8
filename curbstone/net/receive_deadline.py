"""The deadline for a frame, line or message that a client has begun to send. It has no clock: each call says the time.

A client that sends a byte now and then is alive, but makes no progress. So what it began must be complete in time,
unless it is large and its bytes keep coming at a least rate. Bytes of an earlier period do not count: even if only the
last byte of a large message is missing, that byte must arrive in time. A client that has begun nothing has no deadline.
"""

from __future__ import annotations

TICK_MS_MAX = 5_000


class ReceiveDeadline:
    """The deadline of one connection.

    What is begun must be complete within `limit_ms`, unless each `limit_ms` brings as many bytes as `bytes_per_s` asks
    for.
    """

    def __init__(self, limit_ms: int, bytes_per_s: int) -> None:
        self._limit_ms = limit_ms
        self._step_bytes = max(1, limit_ms * bytes_per_s // 1000)
        self._since_ms = 0
        self._bytes_since = 0
        self._bytes = 0
        self._reading = True
        self.tick_ms = max(1, min(TICK_MS_MAX, limit_ms))
        """How often to call `is_late` while something is begun."""

    @property
    def is_begun(self) -> bool:
        """Whether something was begun and is not complete."""
        return self._bytes > 0

    def unfinished(self, size: int, completed: bool, now_ms: int) -> None:
        """Note that a read left `size` bytes of something unfinished. `completed` says whether it completed something
        before.
        """
        if completed or not self._bytes or size - self._bytes_since >= self._step_bytes:
            self._since_ms = now_ms
            self._bytes_since = size
        self._bytes = size

    def reading(self, on: bool, now_ms: int) -> None:
        """Note that we stopped reading, or continued: a client that is not read can't be late."""
        self._reading = on
        self._since_ms = now_ms

    def is_late(self, now_ms: int) -> bool:
        """Return whether the deadline has passed."""
        return self._reading and self.is_begun and now_ms - self._since_ms >= self._limit_ms
