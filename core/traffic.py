"""What each protocol has carried since the start, in plain numbers, so that counting costs next to nothing.

The protocols count here, once for each batch of messages. What the engine does on its own, such as expiring or
dead-lettering messages, belongs to no protocol; the `Stats` of the queues count that.
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
        """Published messages that were confirmed."""
        self.delivered = 0
        """Messages handed to consumers."""
        self.redelivered = 0
        """Delivered messages that had been delivered before."""
        self.acked = 0
        """Deliveries that consumers have acked, including those that were settled by being sent."""
        self.returned = 0
        """Deliveries that consumers have requeued (nack), without those that returned because a connection ended."""
        self.rejected = 0
        """Deliveries that consumers have rejected, with or without a dead-letter queue."""
        self.refusals: dict[str, int] = {}
        """How often something was refused, by reason, such as queue_full for QueueFull."""

    def refuse(self, error: Exception, reason: str = "") -> None:
        """Count a refusal by its reason or, if none is given, by the class of the error; so there are few reasons."""
        name = reason or _reason(type(error).__name__)
        self.refusals[name] = self.refusals.get(name, 0) + 1

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries. This looks at each of them."""
        self.delivered += len(deliveries)
        self.redelivered += sum([delivery.tries > 0 for delivery in deliveries])

    def settle(self, outcome: Outcome, count: int) -> None:
        """Count deliveries that were settled in the same way."""
        if outcome is Outcome.ACK:
            self.acked += count
        elif outcome is Outcome.NACK:
            self.returned += count
        else:
            self.rejected += count


@cache
def _reason(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class DeliveryCounter:
    """Counts the deliveries of one consumer, and looks at each of them only if the queue has redelivered any."""

    __slots__ = ("_queue", "_redelivered", "_traffic")

    def __init__(self, traffic: Traffic, queue: Queue) -> None:
        self._traffic = traffic
        self._queue = queue
        self._redelivered = queue.stats.redelivered

    def count(self, deliveries: Sequence[Delivery], *, auto: bool) -> None:
        """Count deliveries that were just handed over; with `auto` they were settled by that."""
        traffic = self._traffic
        # The queue counts redeliveries before it hands them over. If its count is the same as before, there are none.
        redelivered = self._queue.stats.redelivered
        if redelivered == self._redelivered:
            traffic.delivered += len(deliveries)
        else:
            self._redelivered = redelivered
            traffic.deliver(deliveries)
        if auto:
            traffic.acked += len(deliveries)
