"""Checks, numbers and addresses messages that the journal is to publish as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from curbstone.core.errors import CurbstoneError, NotSupported
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.rabbit import lacking
from curbstone.rabbit.event_keys import routing_key
from curbstone.rabbit.guard import Guard
from curbstone.rabbit.unit import Addressed


class Target(Protocol):
    """The part of a queue that is needed here."""

    @property
    def name(self) -> QueueName:
        """The project and name of the queue."""

    @property
    def uid(self) -> str:
        """The uid of the queue. A queue that is deleted and created again has another one."""

    @property
    def options(self) -> QueueOptions:
        """The options in force."""

    @property
    def guard(self) -> Guard:
        """The rules for messages that enter the queue."""

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published to the queue now, or None if it can."""


def to_queue(target: Target, messages: Sequence[Message], numbers: Iterable[int], now_ms: int) -> list[Addressed]:
    """Address messages to a queue. Raise the error of the first one that is not accepted."""
    refusal = target.refusal()
    if refusal is not None:
        raise refusal
    ttl_ms = int(target.options.ttl * 1000)
    found = []
    lacking.check_keys(messages)
    for message, number in zip(messages, numbers, strict=True):
        if (unfit := target.guard.unfit(message)) is not None:
            raise unfit
        copy = _numbered(message, number, now_ms, ttl_ms, message.groups)
        due_ms = now_ms + message.delay_ms if message.delay_ms > 0 else 0
        found.append(Addressed(target.name, target.uid, copy, due_ms))
    return found


def to_event(
    project: str, event: str, messages: Sequence[Message], numbers: Iterable[int], now_ms: int
) -> list[Addressed]:
    """Address messages to the queues bound to an event. Raise the error of the first one that is not accepted."""
    if any(message.delay_ms > 0 for message in messages):
        raise NotSupported(lacking.EVENT_DELAY)
    lacking.check_keys(messages)
    key = routing_key(project, event)
    numbered = zip(messages, numbers, strict=True)
    return [Addressed(None, key, _numbered(message, number, now_ms, 0, ())) for message, number in numbered]


def _numbered(message: Message, number: int, now_ms: int, ttl_ms: int, groups: tuple[str, ...]) -> Message:
    lives_ms = message.ttl_ms or ttl_ms
    copy = Message(message.body, message.headers, groups=groups)
    copy.seq, copy.timestamp_ms = number, now_ms
    copy.expires_ms = now_ms + lives_ms if lives_ms else 0
    return copy
