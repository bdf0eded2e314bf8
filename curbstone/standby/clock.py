"""The clock of this machine, which also runs while it sleeps, and the name of its present run."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> int:
    """Return milliseconds of a monotonic clock that also runs while the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def boot_id() -> bytes:
    """Return the name of this run of the machine; if it can't be known, one that is never the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().replace(b"-", b"").strip()
    except OSError:
        return secrets.token_hex(16).encode()
