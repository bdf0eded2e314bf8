"""File descriptors: how many there may be, and who gets them.

A connection takes one, a segment that is being written to another. Files give theirs up when they are idle, so that a
few do for any number of queues; connections can't. So connections get what files, threads and listeners do not need.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from curbstone.core.errors import Unavailable

try:
    import resource
except ImportError:  # there is none on Windows
    resource = None  # type: ignore[assignment]

OWN = 64
"""For listeners, the event loop, logs, and what the disk threads have open for a moment."""
FILES_MIN = 8
CONNECTIONS_MIN = 8
FILES_MAX = 4096
UNLIMITED = 1 << 20


class Shares(NamedTuple):
    """How many descriptors there are for each."""

    connections: int
    files: int


def limit() -> int:
    """Return how many descriptors the process may have now."""
    if resource is None:
        return UNLIMITED
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def raise_limit() -> int:
    """Set the limit as high as the system lets us, and return it; raise Unavailable if that is not enough."""
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
    """Return how many of `most` descriptors connections and files may have."""
    left = most - OWN
    files = max(FILES_MIN, min(left // 4, FILES_MAX))
    return Shares(max(left - files, 0), files)
