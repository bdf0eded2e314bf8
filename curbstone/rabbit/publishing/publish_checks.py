"""The rules for messages that enter a queue: `publish_paused`, the largest size, and the schema.

Each gateway checks the messages that are published through it. No gateway can check messages that RabbitMQ itself puts
into queues: the copies of an event, so a queue with such rules can't be bound to an event; and messages that expired in
another queue, if this is its dead-letter queue.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, MessageTooLarge, PublishPaused, SchemaViolation
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import BodyRule, Schemas
from curbstone.rabbit.shared import unsupported
from curbstone.rabbit.shared.registry import Definition

CHECK_MS_MAX = 250
"""A body whose check could take longer is refused, because the check blocks the event loop."""


class PublishChecks:
    """The rules of one queue, from its current options."""

    __slots__ = ("_bytes_max", "_door", "_paused")

    def __init__(self, name: QueueName, options: QueueOptions, schemas: Schemas) -> None:
        text = f"queue {name} accepts no messages until its option publish_paused is false"
        self._paused = PublishPaused(text) if options.publish_paused else None
        self._bytes_max = options.max_message_size
        self._door = BodyRule(lambda: schemas, options.schema) if options.schema else None

    def refusal(self) -> CurbstoneError | None:
        """Return why the queue accepts no messages, or None if it does."""
        return self._paused

    def rejection(self, message: Message) -> CurbstoneError | None:
        """Return why the queue refuses this message, or None if it does not."""
        size = len(message.body)
        if size > self._bytes_max:
            return MessageTooLarge(f"the message has {size} bytes, the queue's max_message_size is {self._bytes_max}")
        if self._door is None:
            return None
        if self._door.most_ms(message.body) > CHECK_MS_MAX:
            return SchemaViolation(f"the check could take more than the {CHECK_MS_MAX} ms that a cluster allows")
        return self._door.check(message.body)


def check_options(
    name: QueueName, options: QueueOptions, definition: Definition | None, max_cap: int, schemas: Schemas
) -> None:
    """Raise an error if a queue, existing or new, can't have these options."""
    unsupported.check_options(options)
    if options.dead_letter == str(name):
        raise BadRequest("bad option dead_letter: a queue can't be its own")
    if options.schema and (definition is None or options.schema != definition.options.schema):
        schemas.rule(options.schema)
    if definition is None:
        if options.cap > max_cap and not name.is_private:
            raise BadRequest(f"bad option cap: {options.cap} is more than the server's --max-cap of {max_cap}")
        return
    for option in ("cap", "overflow"):
        now = getattr(definition.options, option)
        if getattr(options, option) != now:
            raise Conflict(f"the {option} of queue {name} is {now}: on a cluster it can't change after the creation")
    check_bindings(name, options, definition.bindings)


def check_bindings(name: QueueName, options: QueueOptions, bindings: frozenset[str]) -> None:
    """Raise Conflict if a queue with these options can't be bound to these events."""
    option = "schema" if options.schema else "publish_paused" if options.publish_paused else ""
    if option and bindings:
        why = "RabbitMQ puts the copies of an event into a queue without a check"
        raise Conflict(f"on a cluster queue {name} can't have the option {option} and be bound to events: {why}")
