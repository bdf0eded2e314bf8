"""Who takes from a queue, and what each of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.values import Holder

if TYPE_CHECKING:
    from curbstone.core.consumer import Consumer
    from curbstone.core.queue import Queue


def holders(queue: Queue) -> list[Holder]:
    """Return the consumers of all groups, and the leases of each group."""
    found = [_of_consumer(consumer) for consumer in queue.consumers()]
    ends: dict[str, list[int]] = {}
    for group, until_ms in queue.leasing.ends():
        ends.setdefault(group, []).append(until_ms)
    return found + [Holder("leases", group, 0, len(until), "leased", min(until)) for group, until in ends.items()]


def _of_consumer(consumer: Consumer) -> Holder:
    window = 0 if consumer.auto else consumer.window
    state = "held" if consumer.held else "ready" if consumer.room > 0 else "full"
    return Holder("consumer", consumer.group, window, len(consumer.unsettled), state, 0)
