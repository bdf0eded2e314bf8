"""The numbers of messages. They are unique across all gateways, and nearly in order of time.

A number has 63 bits: milliseconds since 2023-11-14 (41), the gateway's number (8), and a counter (14). If the counter
overflows, it takes numbers of the next millisecond.
"""

from __future__ import annotations

from curbstone.core.host import Host

EPOCH_MS = 1_700_000_000_000
COUNTER_BITS = 14
GATEWAY_BITS = 8
AT_ONCE_MAX = 1 << COUNTER_BITS
GATEWAYS_MAX = 1 << GATEWAY_BITS


class MessageIds:
    """Assigns numbers to the messages of one gateway."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ms = 0
        self._next = 0
        self.gateway = 0

    def take(self, count: int) -> int:
        """Return the first of `count` consecutive numbers, at most AT_ONCE_MAX."""
        now_ms = self._host.wall_ms() - EPOCH_MS
        if now_ms > self._ms:
            self._ms, self._next = now_ms, 0
        if self._next + count > AT_ONCE_MAX:
            self._ms, self._next = self._ms + 1, 0
        first = (self._ms << GATEWAY_BITS | self.gateway) << COUNTER_BITS | self._next
        self._next += count
        return first


def time_of(number: int) -> int:
    """Return the wall-clock time in ms when a number was assigned."""
    return (number >> GATEWAY_BITS + COUNTER_BITS) + EPOCH_MS
