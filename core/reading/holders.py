"""Who takes from a queue, and what each of them holds."""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.core.delivery.consumer import Consumer
from curbstone.core.values import Holder


def holders(consumers: Iterable[Consumer], leases: Iterable[tuple[str, int]]) -> list[Holder]:
    """Return a holder for each consumer, and one for all leases of each group; a lease is given as (group, end)."""
    found = [_of_consumer(consumer) for consumer in consumers]
    ends: dict[str, list[int]] = {}
    for group, until_ms in leases:
        ends.setdefault(group, []).append(until_ms)
    return found + [Holder("leases", group, 0, len(until), "leased", min(until)) for group, until in ends.items()]


def _of_consumer(consumer: Consumer) -> Holder:
    window = 0 if consumer.auto else consumer.window
    state = "held" if consumer.held else "ready" if consumer.room > 0 else "full"
    return Holder("consumer", consumer.group, window, len(consumer.unsettled), state, 0)
