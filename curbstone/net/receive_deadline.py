"""The deadline for a frame, line or message that a client has begun to send. Callers pass the time.

A client that sends a byte now and then is alive, but makes no progress. So a message must be complete in time, unless
it is large and its bytes arrive at a minimum rate in each period: even if only the last byte of a large message is
missing, it must arrive in time. A client that has not begun a message has no deadline.
"""

from __future__ import annotations

TICK_MS_MAX = 5_000


class ReceiveDeadline:
    """The deadline of one connection: `limit_ms`, extended while bytes arrive at a rate of `bytes_per_s`."""

    def __init__(self, limit_ms: int, bytes_per_s: int) -> None:
        self._limit_ms = limit_ms
        self._step_bytes = max(1, limit_ms * bytes_per_s // 1000)
        self._since_ms = 0
        self._bytes_since = 0
        self._bytes = 0
        self._reading = True
        self.tick_ms = max(1, min(TICK_MS_MAX, limit_ms))
        """How often to call `is_late` while `is_begun`."""

    @property
    def is_begun(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._bytes > 0

    def unfinished(self, size: int, completed: bool, now_ms: int) -> None:
        """Note that a read left `size` bytes of an incomplete message; `completed`: it completed another one."""
        if completed or not self._bytes or size - self._bytes_since >= self._step_bytes:
            self._since_ms = now_ms
            self._bytes_since = size
        self._bytes = size

    def reading(self, on: bool, now_ms: int) -> None:
        """Note that reading stopped or resumed: a client that is not read can't be late."""
        self._reading = on
        self._since_ms = now_ms

    def is_late(self, now_ms: int) -> bool:
        return self._reading and self.is_begun and now_ms - self._since_ms >= self._limit_ms
