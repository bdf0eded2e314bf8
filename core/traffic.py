"""What one protocol has carried since the start; plain numbers, so that counting costs next to nothing.

The protocols count here, per batch of messages. What the engine does on its own, as to expire messages or to
dead-letter what was tried too often, belongs to no protocol: the `Stats` of the queues have that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from curbstone.core.message import Delivery
from curbstone.core.port import Queue
from curbstone.core.values import Outcome


class Traffic:
    """The numbers of one protocol."""

    __slots__ = ("acked", "confirmed", "delivered", "published", "redelivered", "refusals", "rejected", "returned")

    def __init__(self) -> None:
        self.published = 0
        """Messages taken from producers, whether or not a queue had room for them."""
        self.confirmed = 0
        """Those of them whose commit was confirmed."""
        self.delivered = 0
        """Messages handed to consumers."""
        self.redelivered = 0
        """Those of them that had been handed to somebody before."""
        self.acked = 0
        """Deliveries that consumers have acknowledged, those that are settled when they are sent among them."""
        self.returned = 0
        """Deliveries that consumers have given back (nack); not those that returned because a connection ended."""
        self.rejected = 0
        """Deliveries that consumers have rejected: to the dead-letter queue, or away if there is none."""
        self.refusals: dict[str, int] = {}
        """How often something was refused, by the reason: queue_full for QueueFull."""

    def refuse(self, error: Exception, reason: str = "") -> None:
        """Count what is refused, by the class of the error where no reason is given: so the names are few."""
        name = reason or _reason(type(error).__name__)
        self.refusals[name] = self.refusals.get(name, 0) + 1

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries; looks at each."""
        self.delivered += len(deliveries)
        self.redelivered += sum([delivery.tries > 0 for delivery in deliveries])

    def settle(self, outcome: Outcome, count: int) -> None:
        """Count deliveries that have ended in the same way."""
        if outcome is Outcome.ACK:
            self.acked += count
        elif outcome is Outcome.NACK:
            self.returned += count
        else:
            self.rejected += count


@cache
def _reason(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Handouts:
    """Counts what one consumer gets of a queue, and looks at the deliveries only if the queue redelivered any."""

    __slots__ = ("_queue", "_redelivered", "_traffic")

    def __init__(self, traffic: Traffic, queue: Queue) -> None:
        self._traffic = traffic
        self._queue = queue
        self._redelivered = queue.stats.redelivered

    def count(self, deliveries: Sequence[Delivery], *, auto: bool) -> None:
        """Count deliveries that were just handed over; `auto`: they are settled by that."""
        traffic = self._traffic
        # The queue counted them before it handed them over: while its number stands still, all of it is new.
        redelivered = self._queue.stats.redelivered
        if redelivered == self._redelivered:
            traffic.delivered += len(deliveries)
        else:
            self._redelivered = redelivered
            traffic.deliver(deliveries)
        if auto:
            traffic.acked += len(deliveries)
