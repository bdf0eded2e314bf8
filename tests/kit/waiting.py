"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.02


def wait_until(is_so: Callable[[], object], what: str = "it did not happen", limit_s: float = 120) -> None:
    """Wait until something is so; fail with `what` if it takes too long."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, f"{what}, for {limit_s} s"
        time.sleep(LOOK_S)
