"""Plain counters of one queue; adapters and metrics read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """What has happened since the start."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    purged: int = 0
    commits: int = 0
    commit_ms: int = 0
