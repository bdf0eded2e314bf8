"""Waiting for something that another process does."""

from __future__ import annotations

import threading
from collections.abc import Callable


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(1200):
        if is_so():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen in a minute")
