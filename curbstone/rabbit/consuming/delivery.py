"""Decides which messages from AMQP are delivered: not before they are due, not expired, not tried too often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.values import UNNAMED
from curbstone.rabbit.amqp.port import Arrived
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.consuming import dead_letters
from curbstone.rabbit.publishing.publisher import Outgoing
from curbstone.rabbit.shared import delay_ladder
from curbstone.rabbit.shared.mapping import due_of, message_of, number_of, tries_of, uid_of

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue


def admit(queue: Queue, group: str, arrived: Arrived, settling: Settling) -> Delivery | None:
    """Return the delivery of a message, or None if it must not be delivered; then it is settled here."""
    engine = queue.engine
    properties = arrived.properties
    now_ms = engine.host.wall_ms()
    number = number_of(properties)
    due_ms = due_of(properties)
    if due_ms and _is_stale(queue, number or 0, uid_of(properties)):
        settling.ack(arrived.tag)
        return None
    if number in queue.definition.deleted and group == UNNAMED:
        settling.ack(arrived.tag)
        engine.propose({"do": "dropped", "uid": queue.uid, "seq": number}, _known)
        return None
    if due_ms > now_ms:
        delay_further(queue, group, arrived, due_ms - now_ms, settling)
        return None
    message = message_of(arrived, number if number is not None else engine.ids.take(1))
    if not queue.accepts(arrived, message):
        queue.stats.filtered += 1
        settling.ack(arrived.tag)
        return None
    tries = tries_of(properties)
    if arrived.exchange == engine.names.dead:
        from_queue = engine.names.of_queue(arrived.key)
        message.headers = dead_letters.without_provenance(message.headers)
        message.headers += dead_letters.provenance_of_expired(properties, from_queue, tries)
        message.expires_ms = 0
        tries = 0
    if not message.expires_ms and queue.options.ttl and arrived.exchange != engine.names.dead:
        message.expires_ms = message.timestamp_ms + int(queue.options.ttl * 1000)
    delivery = Delivery(message, tries, due_ms or message.timestamp_ms)
    if 0 < message.expires_ms <= now_ms:
        queue.stats.expired += 1
        dead_letters.move(queue, settling, arrived.tag, delivery, dead_letters.EXPIRED, tries)
        return None
    most = queue.options.max_tries
    if most and tries >= most:
        dead_letters.move(queue, settling, arrived.tag, delivery, dead_letters.MAX_TRIES, tries)
        return None
    queue.stats.delivered += 1
    queue.stats.redelivered += tries > 0
    return delivery


def _known(_error: CurbstoneError | None) -> None:
    """Ignore the outcome: without the entry, gateways only remember the deletion for longer."""


def _is_stale(queue: Queue, number: int, uid: str) -> bool:
    """Return whether a delayed message was published to an earlier queue of this name, or before a purge."""
    return (bool(uid) and uid != queue.uid) or number < queue.purged


def delay_further(queue: Queue, group: str, arrived: Arrived, delay_ms: int, settling: Settling) -> None:
    """Delay a message that arrived too early once more, and settle it once the copy is confirmed."""
    engine = queue.engine
    path = delay_ladder.route(delay_ms, engine.names.queue(queue.name, group))
    headers = {name: value for name, value in arrived.properties.headers.items() if name.startswith("x-cs-")}
    properties = arrived.properties._replace(headers=headers, expiration=None)

    def done(error: CurbstoneError | None) -> None:
        if error is None:
            settling.ack(arrived.tag)
        elif settling.channel.is_open:
            settling.give_back(arrived.tag)

    outgoing = Outgoing(engine.names.step(path.step), path.key, properties, arrived.body, False)
    engine.publisher.send(str(queue.name), outgoing, done)
