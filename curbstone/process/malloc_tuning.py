"""Parameters of the C library's allocator.

By default, glibc gives memory back to the system as soon as 128 KiB at the end of its heap are free. For each large
message the kernel would then have to find and clear pages that the process has just freed, which slows down the sending
of 64 KiB messages by a tenth or more.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""The names of the parameters in mallopt(3)."""
KEPT_BYTES = 64 * 1024 * 1024
"""How much free memory at the end of the heap is kept. It was used before, so the process does not grow."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Blocks from this size on get pages of their own, which are given back at once. Socket reads are smaller."""


def keep_freed() -> None:
    """Make the allocator keep freed memory. Do nothing without glibc, or if the environment sets its parameters."""
    if sys.platform == "win32" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        # One heap for all threads. By default each disk thread has its own, which keeps as much free memory, and
        # malloc_trim(3) does not trim the end of those.
        mallopt(M_ARENA_MAX, 1)
