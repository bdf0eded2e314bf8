"""Private queues: those behind `/topic/…` subscriptions and `/temp-queue/…`, which go with their connection.

A subscriber that does not take what is published to it must cost neither the publishers nor the disk. So a
private queue may grow to `Limits.private_bytes_max`; then its subscriber is told so in an ERROR and closed, and
the queue goes with it. It has a cap of several times that, which leaves room for what is on its way meanwhile;
and where even that is full, a publish that only private queues refused counts as done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, EventRefused, QueueFull
from curbstone.core.names import PRIVATE_PROJECT, QueueName
from curbstone.stomp.connection import Connection
from curbstone.stomp.errors import ProtocolError

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.consumer import Consumer
    from curbstone.core.queue import Queue

CAP_PER_LIMIT = 4
"""The cap of a private queue, in multiples of what it may hold before its subscriber is closed."""


def clear(broker: Broker) -> None:
    """Delete the private queues that an earlier life of the server left behind."""
    for queue in broker.queues():
        if queue.name.project == PRIVATE_PROJECT:
            broker.delete(queue.name, _ignore)


def make(connection: Connection, name: QueueName) -> Queue:
    """Return a private queue of the connection, new or not."""

    def stored(error: CurbstoneError | None) -> None:
        if error is not None and not connection.lost:
            connection.fail(error)

    broker = connection.broker
    broker.declare(name, {"cap": connection.limits.private_bytes_max * CAP_PER_LIMIT}, stored)
    connection.private.add(name)
    return broker.get(name)


def close_if_slow(connection: Connection, queue: Queue, consumer: Consumer) -> None:
    """End the connection if its subscription leaves too much lying in its private queue."""
    limit = connection.limits.private_bytes_max
    if connection.ending:
        return
    # The directory also holds what was settled long ago, so its size alone says nothing of the subscriber.
    counts = queue.counts()
    if counts.bytes <= limit:
        return
    waits = counts.rdy > 0 and consumer.room <= 0
    if waits or sum([len(delivery.message.body) for delivery in consumer.unsettled.values()]) > limit:
        connection.fail(
            ProtocolError(f"the subscriber is too slow, more than {limit} bytes wait in a queue of its own")
        )


def is_harmless(error: CurbstoneError) -> bool:
    """Whether a refused publish to an event only missed private queues, full ones or such that are gone meanwhile."""
    return isinstance(error, EventRefused) and all(
        [name.is_private and isinstance(refusal, QueueFull) for name, refusal in error.refused.items()]
    )


def _ignore(_existed: bool) -> None:
    """Nobody waits for it."""
