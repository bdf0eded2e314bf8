"""What a queue takes in: nothing while `publish_paused` is set, nothing too large, nothing that breaks its schema.

Each gateway checks what is published through it. What RabbitMQ itself puts into a queue passes no gateway: copies of an
event, so a queue that is guarded so can't be bound to one; and what has expired in a queue whose dead letters it gets.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, MessageTooLarge, PublishPaused
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import Door, Schemas
from curbstone.rabbit import lacking
from curbstone.rabbit.registry import Known


class Guard:
    """The rules of one queue, as its options are now."""

    __slots__ = ("_bytes_max", "_door", "_paused")

    def __init__(self, name: QueueName, options: QueueOptions, schemas: Schemas) -> None:
        text = f"queue {name} takes no messages until its option publish_paused is false"
        self._paused = PublishPaused(text) if options.publish_paused else None
        self._bytes_max = options.max_message_size
        self._door = Door(lambda: schemas, options.schema) if options.schema else None

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing may come in, or None."""
        return self._paused

    def unfit(self, message: Message) -> CurbstoneError | None:
        """Return why a message may not come in, or None."""
        size = len(message.body)
        if size > self._bytes_max:
            return MessageTooLarge(f"the message has {size} bytes, the queue's max_message_size is {self._bytes_max}")
        return self._door.refusal(message.body) if self._door is not None else None


def check_options(name: QueueName, options: QueueOptions, known: Known | None, max_cap: int, schemas: Schemas) -> None:
    """Raise what keeps a queue, or a new one, from having these options."""
    lacking.check_options(options)
    if options.dead_letter == str(name):
        raise BadRequest("bad option dead_letter: a queue can't be its own")
    if options.schema and (known is None or options.schema != known.options.schema):
        schemas.rule(options.schema)
    if known is None:
        if options.cap > max_cap and not name.is_private:
            raise BadRequest(f"bad option cap: {options.cap} is more than the server's --max-cap of {max_cap}")
        return
    for option in ("cap", "overflow"):
        now = getattr(known.options, option)
        if getattr(options, option) != now:
            raise Conflict(f"the {option} of queue {name} is {now}: on a cluster it is fixed when the queue is made")
    check_bindings(name, options, known.bindings)


def check_bindings(name: QueueName, options: QueueOptions, bindings: frozenset[str]) -> None:
    """Raise Conflict if a queue with these options can't be bound to these events."""
    option = "schema" if options.schema else "publish_paused" if options.publish_paused else ""
    if option and bindings:
        why = "RabbitMQ puts the copies of an event into a queue, past what would check them"
        raise Conflict(f"on a cluster queue {name} can't have the option {option} and be bound to events: {why}")
