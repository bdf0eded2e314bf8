"""File descriptors: how many the process may have, and how they are allocated.

Each connection takes one, and so does each segment that is being written to. Idle files are closed, so a few
descriptors are enough for any number of queues. Connections get all descriptors that files, threads and listeners do
not need.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from curbstone.core.errors import Unavailable

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]

OWN = 64
"""Descriptors for listeners, the event loop, logs, and files that disk threads open briefly."""
FILES_MIN = 8
CONNECTIONS_MIN = 8
FILES_MAX = 4096
UNLIMITED = 1 << 20


class Shares(NamedTuple):
    """The allocation of descriptors."""

    connections: int
    files: int


def limit() -> int:
    """Return the current limit of the process."""
    if resource is None:
        return UNLIMITED
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def raise_limit() -> int:
    """Set the limit as high as the system allows, and return it. Raise Unavailable if that is not enough."""
    if resource is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = limit()
    least = OWN + FILES_MIN + CONNECTIONS_MIN
    if most < least:
        raise Unavailable(f"the limit of open files is {most}; raise it to at least {least} (ulimit -n)")
    return most


def shares(most: int) -> Shares:
    """Allocate `most` descriptors."""
    left = most - OWN
    files = max(FILES_MIN, min(left // 4, FILES_MAX))
    return Shares(max(left - files, 0), files)
