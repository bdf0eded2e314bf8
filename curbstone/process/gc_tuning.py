"""Makes garbage collections rare and short, and gives freed memory back to the system after them.

By default Python collects the young generation whenever 700 more objects were made than dropped. A message is about 20
objects until it is on disk, and a thousand messages are under way at a time. So nearly all objects that were examined
were alive, and examining them took a tenth of the CPU time of a server with many queues. `YOUNG` is larger than the
number of objects under way.

Python starts a full collection whenever enough was allocated, and a full collection examines every object. Under a load
that makes and drops connections and subscriptions, this happened twice a second and took 40 to 95 ms each time. So full
collections run by a timer here: every `CHECK_EVERY_MS`, if there have been enough collections of young objects.
Between two checks Python itself starts a full one only after `FULL_AFTER` collections of the middle generation, which
limits the memory that dead cycles can take. Connections leave no cycles (`tests/serve/test_gone_connections.py`), so
usually there is nothing to find; the pauses between full collections then become longer and longer.

Objects that live long are frozen, so that they are not examined at all. They are thawed and examined once whenever the
number of queues has doubled or halved. Dead cycles among them are kept until then, at most.

After a burst of large messages, the C library keeps the freed memory unless it is asked to give it back.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from curbstone.core.host import Host

YOUNG = 30_000
"""A young collection starts when so many more objects were made than dropped. It takes one or two ms."""
YOUNG_BEFORE_MIDDLE = 2
"""After more young collections than this, one of the middle generation starts, of at most 90,000 objects."""
CHECK_EVERY_MS = 10_000
MIDDLE_MIN = 1
"""With fewer collections of the middle generation, a full one would find little and is skipped."""
FULL_AFTER = 15
"""After more collections of the middle generation than this, Python starts a full one itself.

By then a million more objects were made than dropped.
"""
FOUND_MIN = 1_000
"""A full collection that finds fewer dead objects was not worth its pause."""
CHECKS_MAX = 30
"""If full collections find nothing, at least one check in so many still collects."""
QUEUES_MIN = 100
"""With fewer queues objects are not thawed, because examining them all takes little time."""


class Collections:
    """Runs the garbage collections of a server."""

    def __init__(self, host: Host, queues: Callable[[], int]) -> None:
        """`queues` returns the number of queues."""
        self._host = host
        self._queues = queues
        self._frozen = 0
        """The number of queues when the objects were last frozen."""
        self._checks = 1
        """One check in so many collects."""
        self._checked = 0

    def start(self) -> None:
        """Freeze the existing objects, and start the timer."""
        gc.set_threshold(YOUNG, YOUNG_BEFORE_MIDDLE, FULL_AFTER)
        self._freeze()
        self._host.call_later(CHECK_EVERY_MS, self._check)

    def _freeze(self) -> None:
        self._frozen = self._queues()
        gc.collect()
        gc.freeze()

    def _check(self) -> None:
        few, many = sorted((max(self._queues(), QUEUES_MIN), max(self._frozen, QUEUES_MIN)))
        if many >= 2 * few:
            gc.unfreeze()
            self._freeze()
        elif gc.get_count()[2] >= MIDDLE_MIN:
            self._checked += 1
            if self._checked >= self._checks:
                self._collect()
        self._host.call_later(CHECK_EVERY_MS, self._check)

    def _collect(self) -> None:
        self._checked = 0
        self._checks = min(2 * self._checks, CHECKS_MAX) if gc.collect() < FOUND_MIN else 1
        self._host.submit(trim_memory, lambda result, error: None)


@contextmanager
def collection_disabled() -> Iterator[None]:
    """Turn collections off, for a recovery: the objects made then stay, and need not be examined."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def trim_memory() -> None:
    """Give freed memory back to the system, if the C library can. Blocks for some ms."""
    with suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)
