"""Checks, numbers and addresses messages that the journal publishes atomically."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.errors import NotSupported
from curbstone.core.message import Message
from curbstone.core.orders import orders_of
from curbstone.rabbit.publishing.unit import Addressed
from curbstone.rabbit.shared import unsupported
from curbstone.rabbit.shared.topology import routing_key

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue


def to_queue(queue: Queue, messages: Sequence[Message], numbers: Iterable[int], now_ms: int) -> list[Addressed]:
    """Address messages to a queue. Raise the error of the first one that is refused."""
    refusal = queue.refusal()
    if refusal is not None:
        raise refusal
    ttl_ms = int(queue.options.ttl * 1000)
    found = []
    unsupported.check_orders(messages)
    for message, number in zip(messages, numbers, strict=True):
        if (rejection := queue.checks.rejection(message)) is not None:
            raise rejection
        copy = _numbered(message, number, now_ms, ttl_ms, message.groups)
        due_ms = now_ms + message.delay_ms if message.delay_ms > 0 else 0
        found.append(Addressed(queue.name, queue.uid, copy, due_ms))
    return found


def to_event(
    project: str, event: str, messages: Sequence[Message], numbers: Iterable[int], now_ms: int
) -> list[Addressed]:
    """Address messages to the queues bound to an event. Raise the error of the first one that is refused."""
    if any(message.delay_ms > 0 for message in messages):
        raise NotSupported(unsupported.EVENT_DELAY)
    unsupported.check_orders(messages)
    key = routing_key(project, event)
    numbered = zip(messages, numbers, strict=True)
    return [Addressed(None, key, _numbered(message, number, now_ms, 0, ())) for message, number in numbered]


def _numbered(message: Message, number: int, now_ms: int, ttl_ms: int, groups: tuple[str, ...]) -> Message:
    lives_ms = message.ttl_ms or ttl_ms
    copy = Message(message.body, message.headers, orders_of(groups=groups))
    copy.seq, copy.timestamp_ms = number, now_ms
    copy.expires_ms = now_ms + lives_ms if lives_ms else 0
    return copy
