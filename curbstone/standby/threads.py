"""Runs the syncs of a copy on threads, so that they overlap as they do at the server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from curbstone.standby.applying import run_sync

THREADS = 16
"""As many as at the server."""


class SyncThreads:
    """Implements `applying.Syncs`."""

    def __init__(self, ended: Callable[[], object]) -> None:
        """`ended` is called on any thread when a sync has ended."""
        self._ended = ended
        self._pool = ThreadPoolExecutor(THREADS, "curbstone-sync")

    def start(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        """See `Syncs`."""

        def run() -> None:
            run_sync(job, done)
            self._ended()

        future = self._pool.submit(run)
        return future.result

    def close(self) -> None:
        """Wait for all syncs, and end the threads."""
        self._pool.shutdown()
