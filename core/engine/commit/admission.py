"""Puts publishes into the write queue, and checks the sizes of messages, which needs no batch.

Nothing is answered here. A publish that is refused waits for its turn like the others, so that answers keep the order
of the publishes.
"""

from __future__ import annotations

from curbstone.core.engine.log.format import BATCH_BYTES, entry_bytes
from curbstone.core.engine.log.publish import EXPIRY_BYTES, AtomicWrite, Hold, Publish
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError, MessageTooLarge
from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey, Numbered, Published

ATOMIC_SHARE = 2
"""An atomic publish may take at most the cap divided by this."""


def publish_atomically(
    parts: Parts, messages: list[Message], on_done: Published, key: IdempotencyKey | None, numbered: Numbered | None
) -> None:
    """Publish messages all or nothing."""
    cap = parts.state.options.cap
    tries = RELEASE_BYTES * sum(map(parts.index.entitled_count, messages))
    size = sum(map(entry_bytes, messages)) + EXPIRY_BYTES * len(messages) + BATCH_BYTES + tries
    publish = AtomicWrite(messages, on_done, size)
    publish.numbered = numbered
    publish.key = key
    publish.refusal = next(filter(None, map(parts.state.too_large, messages)), None)
    if publish.refusal is None and size > cap // ATOMIC_SHARE:
        publish.refusal = MessageTooLarge(f"{size} bytes at once can never fit the queue's cap of {cap} bytes")
    parts.write_queue.publish(publish)


def publish_each(
    parts: Parts, messages: list[Message], on_done: Published, numbered: Numbered | None, hold: Hold | None = None
) -> None:
    """Publish messages one by one; those that are too large are refused in their turn."""
    if hold is not None:
        hold.when_over(parts.wakeups.dirty)
    most = parts.state.options.max_message_size
    for message in messages:
        if len(message.body) > most:
            _publish_those_that_fit(parts, messages, on_done, numbered, hold)
            return
    parts.write_queue.publish(Publish(messages, on_done, numbered, hold))


def _publish_those_that_fit(
    parts: Parts, messages: list[Message], on_done: Published, numbered: Numbered | None, hold: Hold | None
) -> None:
    start = 0
    for place, message in enumerate(messages):
        if (refusal := parts.state.too_large(message)) is not None:
            _publish(parts, messages[start:place], on_done, numbered and numbered.behind(start), hold)
            refuse(parts, [message], on_done, refusal)
            start = place + 1
    _publish(parts, messages[start:], on_done, numbered and numbered.behind(start), hold)


def _publish(
    parts: Parts, messages: list[Message], on_done: Published, numbered: Numbered | None, hold: Hold | None
) -> None:
    if messages:
        parts.write_queue.publish(Publish(messages, on_done, numbered, hold))


def refuse(parts: Parts, messages: list[Message], on_done: Published, refusal: CurbstoneError) -> None:
    """Refuse messages in their turn."""
    publish = Publish(messages, on_done)
    publish.refusal = refusal
    parts.write_queue.publish(publish)
