"""Carries out one committed unit: publishes all of its messages, each under its number.

A message for several groups is published to each group separately. So is a message for an event, once a queue has
refused it, because it must not be stored again in the other queues. Messages that are refused or not confirmed become
a separate unit, which waits on the delay ladder and then returns to `cs/tx`. So they delay nothing else, and no gateway
has to remember them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.orders import Orders
from curbstone.core.values import UNNAMED, Done
from curbstone.rabbit.amqp.port import Channel, Properties
from curbstone.rabbit.publishing.fan_out import EVENT_UID
from curbstone.rabbit.publishing.publisher import Outgoing
from curbstone.rabbit.publishing.unit import Addressed, Unit, encode
from curbstone.rabbit.shared import delay_ladder
from curbstone.rabbit.shared.mapping import properties_of

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine

WAITS_MS = 2048
"""The delay before messages are retried. It is one step of the ladder."""
AGAIN_MS = 500

logger = logging.getLogger("curbstone.rabbit")


class BatchRunner:
    def __init__(
        self,
        engine: Engine,
        unit: Unit,
        channel: Channel,
        on_full: Callable[[str], None],
        on_done: Callable[[], None],
    ) -> None:
        """`channel` delivered the unit. If it is lost, the broker delivers the unit again to some gateway.

        `on_full(uid)` is called for each queue at its cap, and `on_done` when the unit may be settled.
        """
        self._engine = engine
        self._unit = unit
        self._channel = channel
        self._on_full = on_full
        self._on_done = on_done
        self._left = 0
        self._waiting: list[Addressed] = []
        """The messages to retry."""

    @property
    def has_all_queues(self) -> bool:
        """Return whether this gateway has all destination queues of the unit."""
        by_uid = self._engine.by_uid
        return all(
            each.name is None or each.name.is_private or by_uid(each.place) is not None for each in self._unit.messages
        )

    def begin(self) -> None:
        """Publish the messages."""
        parts = [part for each in self._unit.messages for part in self._parts(each)]
        self._left = 1
        self._publish_all(parts)
        self._ended()

    def _parts(self, addressed: Addressed) -> list[Addressed]:
        """Return a copy of the message for each of its groups."""
        queue = self._engine.by_uid(addressed.place)
        if queue is None:
            return [addressed]
        message = addressed.message
        return [
            addressed._replace(message=_copy_for(message, group))
            for group in message.groups or (UNNAMED, *queue.options.groups)
        ]

    def _publish_all(self, parts: list[Addressed]) -> None:
        self._left += len(parts)
        for each in parts:
            self._publish(each, partial(self._published, each))

    def _publish(self, addressed: Addressed, on_done: Done) -> None:
        engine = self._engine
        name, place, message, due_ms = addressed
        now_ms = engine.host.wall_ms()
        if name is None:
            properties = properties_of(message, f"{EVENT_UID}-{message.seq}", now_ms=now_ms)
            outgoing = Outgoing(engine.names.events, place, properties, message.body, False, several=True)
            engine.publisher.send(place, outgoing, on_done)
        elif name.is_private:
            properties = properties_of(message, f"{place}-{message.seq}", now_ms=now_ms)
            outgoing = Outgoing("", engine.names.queue(name), properties, message.body, True)
            engine.publisher.send(str(name), outgoing, on_done)
        elif (queue := engine.by_uid(place)) is not None:
            queue.publishing.store(message, max(due_ms - now_ms, 1) if due_ms else 0, on_done)
        else:
            on_done(NoSuchQueue(f"no such queue: {name}"))  # deleted with its messages after the commit

    def _published(self, addressed: Addressed, error: CurbstoneError | None) -> None:
        """Act on the outcome of a message."""
        if isinstance(error, QueueFull) and addressed.name is None:
            self._publish_to_each(addressed)
        elif isinstance(error, QueueFull | Unavailable):
            self._waiting.append(addressed)
            if isinstance(error, QueueFull):
                self._on_full(addressed.place)
        elif error is not None and not isinstance(error, NoSuchQueue):
            self._lose(addressed, error)
        self._ended()

    def _publish_to_each(self, addressed: Addressed) -> None:
        """Publish an event's message to each queue that may have refused it. Private queues refuse nothing."""
        bound = self._engine.bound_by_key(addressed.place)
        if not bound:
            self._waiting.append(addressed)
        for queue in bound:
            self._publish_all(self._parts(Addressed(queue.name, queue.uid, addressed.message)))

    def _lose(self, addressed: Addressed, error: CurbstoneError) -> None:
        """Move a message that its queue can never store into the queue of lost messages."""
        engine, message = self._engine, addressed.message
        lost = engine.names.lost
        logger.error(
            "a committed message for queue %s can't be stored, and is moved to %s: %s", addressed.name, lost, error
        )
        properties = properties_of(message, f"{addressed.place}-{message.seq}", now_ms=engine.host.wall_ms())
        self._left += 1
        engine.publisher.send(
            lost, Outgoing(lost, "", properties, message.body, False), partial(self._published, addressed)
        )

    def _ended(self) -> None:
        self._left -= 1
        if self._left or not self._channel.is_open:
            return
        if self._waiting:
            self._wait()
        else:
            self._on_done()

    def _wait(self) -> None:
        """Send the remaining messages to the delay ladder, to retry them later."""
        engine = self._engine
        number = engine.ids.take(1)
        path = delay_ladder.route(WAITS_MS, engine.names.transactions)
        rest = encode(Unit(self._unit.origin, number, self._waiting))
        outgoing = Outgoing(engine.names.step(path.step), path.key, Properties({}, f"tx-{number}"), rest, False)

        def waits(error: CurbstoneError | None) -> None:
            if not self._channel.is_open:
                return
            if error is None:
                self._on_done()
            else:
                engine.host.call_later(AGAIN_MS, again)

        def again() -> None:
            if self._channel.is_open and not engine.is_stopping:
                self._wait()

        engine.publisher.send(engine.names.transactions, outgoing, waits)


def _copy_for(message: Message, group: str) -> Message:
    copy = Message(message.body, message.headers, Orders(groups=(group,)))
    copy.seq, copy.timestamp_ms, copy.expires_ms = message.seq, message.timestamp_ms, message.expires_ms
    return copy
