"""File descriptors: how many the process may have, and how they are shared out.

Each connection takes one, and so does each segment that is being written to. A file is closed when it is idle, so a few
descriptors are enough for any number of queues; a connection can't do that. So connections get all the descriptors that
files, threads and listeners do not need.
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
"""Descriptors for listeners, the event loop, logs, and files that the disk threads open for a moment."""
FILES_MIN = 8
CONNECTIONS_MIN = 8
FILES_MAX = 4096
UNLIMITED = 1 << 20


class Shares(NamedTuple):
    """How many descriptors each may have."""

    connections: int
    files: int


def limit() -> int:
    """Return how many descriptors the process may have at present."""
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
        raise Unavailable(f"the limit of open files is {most} (ulimit -n); at least {least} are needed")
    return most


def shares(most: int) -> Shares:
    """Return how many of `most` descriptors connections may have, and how many files."""
    left = most - OWN
    files = max(FILES_MIN, min(left // 4, FILES_MAX))
    return Shares(max(left - files, 0), files)
