"""The deadline for what a client has begun to send: a frame, a line, a message. It has no clock: calls say the time.

A byte now and then is a sign of life, but not of progress. So what was begun must be complete in time, unless it is
large and its bytes keep coming. Bytes of an earlier period do not count: if a large message lacks its last byte, that
byte must come in time, too. A client that has begun nothing has no deadline.
"""

from __future__ import annotations

TICK_MS_MAX = 5_000


class ReceiveDeadline:
    """Of one connection. What is begun must be whole in `limit_ms`, or each `limit_ms` bring it so many bytes
    nearer as `bytes_per_s` gives."""

    def __init__(self, limit_ms: int, bytes_per_s: int) -> None:
        self._limit_ms = limit_ms
        self._step_bytes = max(1, limit_ms * bytes_per_s // 1000)
        self._since_ms = 0
        self._bytes_since = 0
        self._bytes = 0
        self._reading = True
        self.tick_ms = max(1, min(TICK_MS_MAX, limit_ms))
        """How often to look, while something is begun."""

    @property
    def is_begun(self) -> bool:
        """Whether something was begun that is not whole."""
        return self._bytes > 0

    def unfinished(self, size: int, completed: bool, now_ms: int) -> None:
        """Note that a read left `size` bytes of something unfinished; it may have completed others."""
        if completed or not self._bytes or size - self._bytes_since >= self._step_bytes:
            self._since_ms = now_ms
            self._bytes_since = size
        self._bytes = size

    def reading(self, on: bool, now_ms: int) -> None:
        """Reading stopped or went on, for reasons of ours: a client that is not read can't be late."""
        self._reading = on
        self._since_ms = now_ms

    def is_late(self, now_ms: int) -> bool:
        """Return whether what was begun should be further by now."""
        return self._reading and self.is_begun and now_ms - self._since_ms >= self._limit_ms
