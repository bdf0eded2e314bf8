"""The clock by which a server and its copies wait for each other."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return milliseconds of a clock that never jumps, and also runs while the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
