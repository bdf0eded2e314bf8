"""How long calls take, and how much of that was only waiting for a processor.

A test has its server, its honest clients and its hostile ones on one machine. Where these are more than its processors,
some of what a call takes is the time in which the server, or the client itself, was ready and did not run. Linux counts
it for each thread; the rest is what the call would have taken with processors enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = Path("/proc/thread-self/schedstat")


class Stopwatch:
    """Of one client, used by its thread alone."""

    def __init__(self, server_pid: int) -> None:
        self._loop = Path(f"/proc/{server_pid}/task/{server_pid}/schedstat")
        self.took_s: list[float] = []
        self.served_s: list[float] = []
        """Of the same calls, without that waiting; of the threads of the server only the event loop's is looked at."""

    @contextmanager
    def call(self) -> Iterator[None]:
        waited_s = self._waited_s()
        start = time.perf_counter()
        yield
        took_s = time.perf_counter() - start
        self.took_s.append(took_s)
        self.served_s.append(max(0.0, took_s - (self._waited_s() - waited_s)))

    def _waited_s(self) -> float:
        return _waited_s(self._loop) + _waited_s(OWN)

    def figures(self) -> str:
        """Return what there is to say of them."""
        took = f"p50 {_ms(self.took_s, 0.5)}, p99 {_ms(self.took_s, 0.99)}, most {_ms(self.took_s, 1)}"
        served = f"p50 {_ms(self.served_s, 0.5)}, p99 {_ms(self.served_s, 0.99)}, most {_ms(self.served_s, 1)}"
        return f"{len(self.took_s)} calls, {took}; without waiting for a processor {served}"


def _waited_s(thread: Path) -> float:
    """Return how long a thread was ready and did not run; 0 where the system does not count that."""
    try:
        return int(thread.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def _ms(took_s: list[float], share: float) -> str:
    return f"{1000 * sorted(took_s)[int(share * (len(took_s) - 1))]:.1f} ms"
