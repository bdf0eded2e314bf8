"""Dead letters: each is published with its provenance, confirmed, and only then settled in the queue where it died.

After a crash between these steps both messages exist, so a dead letter may be stored twice, but none is lost. If the
dead-letter queue refuses it, the message is held, and this is retried.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core import headers
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.values import Done
from curbstone.rabbit.amqp.port import Properties
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.shared.mapping import whole

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

PREFIX = b"x-dead-"
ERROR_CHARS_MAX = 1000
TRY_AGAIN_MS = 5000
REJECTED, MAX_TRIES, EXPIRED = "rejected", "max_tries", "expired"


def without_provenance(block: bytes) -> bytes:
    """Return a header block without the lines that an earlier death added."""
    if PREFIX not in block:
        return block
    return b"".join(line for line in block.splitlines(keepends=True) if not line.startswith(PREFIX))


def make(queue: Queue, delivery: Delivery, reason: str, tries: int, error: str) -> Message:
    """Return the dead letter of a message: a new message with its provenance."""
    message = delivery.message
    provenance = [
        ("x-dead-queue", str(queue.name)),
        ("x-dead-reason", reason),
        ("x-dead-time", str(queue.engine.host.wall_ms())),
        ("x-dead-tries", str(tries)),
        ("x-dead-id", queue.message_id(message.seq)),
    ]
    if error:
        provenance.append(("x-dead-error", error.replace("\0", "")[:ERROR_CHARS_MAX]))
    return Message(message.body, without_provenance(message.headers) + headers.encode(provenance))


def provenance_of_expired(properties: Properties, name_of_queue: str, tries: int) -> bytes:
    """Return the provenance lines of a message that expired in the broker, from the broker's own headers."""
    deaths = properties.headers.get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    when = first.get("time")
    if isinstance(when, datetime):
        when_ms = round(when.replace(tzinfo=when.tzinfo or UTC).timestamp() * 1000)
    else:
        when_ms = whole(when) * 1000
    return headers.encode(
        [
            ("x-dead-queue", name_of_queue),
            ("x-dead-reason", EXPIRED),
            ("x-dead-time", str(when_ms)),
            ("x-dead-tries", str(tries)),
            ("x-dead-id", properties.message_id or ""),
        ]
    )


def origin(message: Message) -> QueueName | None:
    """Return the queue where a dead letter died, or None if its headers do not name one."""
    for name, value in headers.decode(message.headers):
        if name == "x-dead-queue":
            try:
                return parse_queue_name(value)
            except CurbstoneError:
                return None
    return None


def move(
    queue: Queue,
    settling: Settling,
    tag: int,
    delivery: Delivery,
    reason: str,
    tries: int,
    error: str = "",
    on_done: Done | None = None,
) -> None:
    """Move a delivery to the dead-letter queue, or drop it without one. Repeated until it succeeds."""
    if not queue.options.dead_letter:
        queue.stats.dropped += reason != EXPIRED
        settling.ack(tag)
        if on_done is not None:
            settling.fence(lambda failed: on_done(queue.engine.lost(failed)))
        return
    target = queue.engine.ensure(parse_queue_name(queue.options.dead_letter))
    waiting = on_done

    def done(failed: CurbstoneError | None, _first: int, _count: int) -> None:
        nonlocal waiting
        if failed is None:
            queue.stats.dead_lettered += 1
            settling.ack(tag)
            if waiting is not None:
                finished = waiting
                settling.fence(lambda lost: finished(queue.engine.lost(lost)))
            return
        if waiting is not None:
            waiting(failed)
            waiting = None
        if settling.channel.is_open:
            queue.engine.host.call_later(TRY_AGAIN_MS, again)

    again = partial(target.publish, [make(queue, delivery, reason, tries, error)], done)
    again()
