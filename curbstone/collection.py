"""Keeps full garbage collections short: what lives long is taken out of them, now and again.

With 1,000 queues made since the start a full collection holds the loop up for 40 to 95 ms, again and again. What is
frozen is not looked at. It is thawed and looked at once whenever the number of queues has doubled, or halved; so what
has died since is kept for so long at most, and that is never more than what once lived.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from curbstone.core.host import Host

LOOK_EVERY_MS = 10_000
QUEUES_MIN = 100
"""Fewer take no time worth the trouble."""


def freeze(host: Host, count: Callable[[], int]) -> None:
    """Freeze what there is, and again when `count`, of the queues, has changed much."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _look_later(host, count, count())


def _look_later(host: Host, count: Callable[[], int], frozen: int) -> None:
    def look() -> None:
        few, many = sorted((max(count(), QUEUES_MIN), max(frozen, QUEUES_MIN)))
        if many >= 2 * few:
            freeze(host, count)
        else:
            _look_later(host, count, frozen)

    host.call_later(LOOK_EVERY_MS, look)
