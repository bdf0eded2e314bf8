"""Garbage collections: seldom, short, and followed by giving freed memory back.

Whenever 700 more objects were made than dropped, Python looks at the young ones, to find dead cycles. A message is some
20 objects until it is on disk, and a thousand are under way at a time: so nearly all that was looked at was alive, and
that was a tenth of the CPU time of a server with many queues. `YOUNG` is more than what is under way.

Python starts a full collection whenever enough was allocated, and it looks at all that lives. Under a load that makes
and drops connections and subscriptions that was twice a second, for 40 to 95 ms each. So here they are called by the
clock: each `LOOK_EVERY_MS`, if there were enough collections of young objects. In between only `FULL_AFTER` of those
start one, which bounds the memory that dead cycles may take. Connections leave no cycles
(`tests/test_gone_connections.py`), so mostly there is nothing to find, and then the next look comes later and later.

What lives long is not even looked at: it is frozen. It is thawed and looked at once whenever the number of queues has
doubled, or halved; so what has died since is kept for so long at most, and that is never more than what once lived.

What a burst of large messages has used, the C library keeps for the next one, unless it is asked to give it back.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from curbstone.core.host import Host

YOUNG = 30_000
"""So many objects more made than dropped start a collection of the young ones; it takes one or two ms."""
YOUNG_BEFORE_MIDDLE = 2
"""More collections of the young start one of the middle generation: what outlived them is 90,000 objects at most."""
LOOK_EVERY_MS = 10_000
MIDDLE_MIN = 1
"""After fewer collections of the middle generation there is little that a full one could find."""
FULL_AFTER = 15
"""So many of them start a full one at once: by then more than a million objects more were made than dropped."""
FOUND_MIN = 1_000
"""One that finds fewer dead objects was not worth its pause."""
LOOKS_MAX = 30
"""The most looks of which all but one are left out while there is nothing to find."""
QUEUES_MIN = 100
"""Fewer take no time worth the trouble."""


class Collections:
    """Looks after the memory of a server that has `queues()` queues."""

    def __init__(self, host: Host, queues: Callable[[], int]) -> None:
        self._host = host
        self._queues = queues
        self._frozen = 0
        """How many queues there were when last frozen."""
        self._looks = 1
        """Of so many looks one counts."""
        self._looked = 0

    def start(self) -> None:
        """Freeze what there is, and begin to look after what comes."""
        gc.set_threshold(YOUNG, YOUNG_BEFORE_MIDDLE, FULL_AFTER)
        self._freeze()
        self._host.call_later(LOOK_EVERY_MS, self._look)

    def _freeze(self) -> None:
        self._frozen = self._queues()
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _look(self) -> None:
        few, many = sorted((max(self._queues(), QUEUES_MIN), max(self._frozen, QUEUES_MIN)))
        if many >= 2 * few:
            self._freeze()
        elif gc.get_count()[2] >= MIDDLE_MIN:
            self._looked += 1
            if self._looked >= self._looks:
                self._collect()
        self._host.call_later(LOOK_EVERY_MS, self._look)

    def _collect(self) -> None:
        self._looked = 0
        self._looks = min(2 * self._looks, LOOKS_MAX) if gc.collect() < FOUND_MIN else 1
        self._host.submit(give_back, lambda result, error: None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have no collection while queues are recovered: all that is made is to stay, and is looked at again and again."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def give_back() -> None:
    """Give freed memory back to the system, if the C library can; it takes some ms, so not on the loop's thread."""
    with suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
