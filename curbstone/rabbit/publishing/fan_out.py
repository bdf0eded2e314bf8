"""Publishes to queues that this gateway may not know: those bound to an event, and other gateways' private queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import (
    CurbstoneError,
    EventRefused,
    NoSuchQueue,
    NotSupported,
    QueueFull,
    Unavailable,
    shutting_down,
)
from curbstone.core.headers import key_of
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.values import Done, Published, ignore
from curbstone.rabbit.publishing.publish_job import PublishJob
from curbstone.rabbit.publishing.publisher import Outgoing
from curbstone.rabbit.shared import unsupported
from curbstone.rabbit.shared.mapping import properties_of
from curbstone.rabbit.shared.topology import routing_key

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine
    from curbstone.rabbit.queue import Queue

EVENT_UID = "event"
"""Replaces a queue's uid in the id of a message that is not published to one queue."""


def publish_event(engine: Engine, project: str, event: str, messages: list[Message], on_done: Published) -> None:
    key = routing_key(project, event)
    if not messages or engine.is_stopping:
        refusal = shutting_down() if engine.is_stopping else None
        engine.host.call_soon(partial(on_done, refusal, 0, len(messages)))
        return
    now_ms = engine.host.wall_ms()
    first = engine.ids.take(len(messages))
    bound = engine.bound_count(event, project)

    def done(error: CurbstoneError | None, _first: int, count: int) -> None:
        on_done(error, bound if error is None else 0, count)

    job = PublishJob(engine.next_turn, len(messages), first, done, ignore)
    for place, message in enumerate(messages):
        if message.delay_ms > 0:
            job.ended(place, NotSupported(unsupported.EVENT_DELAY))
            continue
        if key_of(message.headers):
            job.ended(place, NotSupported(unsupported.ORDERING))
            continue
        if message.orders is not None and (message.orders.named or message.orders.batched):
            job.ended(place, NotSupported(unsupported.NAMES if message.orders.named else unsupported.BATCHES))
            continue
        copy = Message(message.body, message.headers)
        copy.seq, copy.timestamp_ms = first + place, now_ms
        copy.expires_ms = now_ms + message.ttl_ms if message.ttl_ms else 0
        properties = properties_of(copy, f"{EVENT_UID}-{first + place}", now_ms=now_ms)
        outgoing = Outgoing(engine.names.events, key, properties, copy.body, False, several=True)
        engine.publisher.send(key, outgoing, partial(_event_published, engine, key, copy, partial(job.ended, place)))


def _event_published(engine: Engine, key: str, message: Message, on_done: Done, error: CurbstoneError | None) -> None:
    """Act on the outcome of an event's message. If an unknown queue refused it, publish to each queue separately."""
    bound = engine.bound_by_key(key)
    if not isinstance(error, QueueFull) or not bound:
        on_done(error)
        return
    left = len(bound)
    refused: dict[QueueName, CurbstoneError] = {}

    def stored(queue: Queue, failed: CurbstoneError | None) -> None:
        nonlocal left
        left -= 1
        if failed is not None and not isinstance(failed, NoSuchQueue):
            refused[queue.name] = failed
        if not left:
            on_done(EventRefused(refused, len(bound) - len(refused)) if refused else None)

    for queue in bound:
        queue.publishing.store(message, 0, partial(stored, queue))


def reply(engine: Engine, queue: Queue | None, name: QueueName, messages: list[Message], on_done: Published) -> None:
    """See `Engine.reply`. `queue` is given if the private queue belongs to this gateway."""

    def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
        on_done(error if isinstance(error, Unavailable) else None, first_seq, count)

    if queue is not None:
        queue.publish(messages, done)
        return
    now_ms = engine.host.wall_ms()
    first = engine.ids.take(len(messages))
    job = PublishJob(engine.next_turn, len(messages), first, done, ignore)
    for place, message in enumerate(messages):
        message.timestamp_ms = now_ms
        properties = properties_of(message, f"{EVENT_UID}-{first + place}", now_ms=now_ms)
        outgoing = Outgoing("", engine.names.queue(name), properties, message.body, True)
        engine.publisher.send(str(name), outgoing, partial(job.ended, place))
