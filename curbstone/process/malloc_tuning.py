"""How the C library's allocator deals with memory that was freed.

By default, glibc gives memory back to the system as soon as 128 KiB at the end of its heap are free. Large messages
come and go all the time, and for each the kernel would have to find and clear pages that the process had a moment
before. That slows the sending of 64 KiB messages down by a tenth or more.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""The names of the parameters in mallopt(3)."""
KEPT_BYTES = 64 * 1024 * 1024
"""How much free memory at the end of the heap is kept. It was used before, so the process never grows by this."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Blocks of so many bytes get pages of their own, which are given back at once. A read of a socket is smaller."""


def keep_freed() -> None:
    """Have the allocator keep what was freed. Do nothing without glibc, or if the environment sets its parameters."""
    if sys.platform == "win32" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        # One heap for all threads. By default each disk thread has its own, of which as much is kept as of the first,
        # and malloc_trim(3) does not give back the end of those.
        mallopt(M_ARENA_MAX, 1)
