"""A monotonic clock that includes the time when the machine sleeps, and the id of the boot."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return the milliseconds since an arbitrary moment, including the time when the machine slept."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def boot_id() -> bytes:
    """Return the id of this boot of the machine, or a random one if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().replace(b"-", b"").strip()
    except OSError:
        return secrets.token_hex(16).encode()
