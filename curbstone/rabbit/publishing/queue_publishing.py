"""Publishing to one queue: messages one by one, atomically, or after a delay."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, MessageTooLarge, NoSuchQueue, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import changed
from curbstone.core.values import UNNAMED, Done, Published
from curbstone.rabbit.publishing import atomic
from curbstone.rabbit.publishing.publish_job import PublishJob
from curbstone.rabbit.publishing.publisher import Outgoing
from curbstone.rabbit.shared import delay_ladder
from curbstone.rabbit.shared.declare import run_concurrently
from curbstone.rabbit.shared.ids import AT_ONCE_MAX
from curbstone.rabbit.shared.mapping import properties_of

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue


class QueuePublishing:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._declaration = queue.declaration

    def publish(self, messages: list[Message], on_done: Published, *, atomic: bool) -> None:
        if atomic:
            self._publish_atomically(messages, on_done)
            return
        for start in range(0, len(messages), AT_ONCE_MAX):
            piece = messages[start : start + AT_ONCE_MAX] if len(messages) > AT_ONCE_MAX else messages
            unknown = set(self._queue.options.groups).union(*[each.groups for each in piece if each.groups])
            unknown -= self._declaration.groups
            if unknown or not self._declaration.is_open:
                self._declaration.with_groups(unknown, partial(self._publish_or_refuse, piece, on_done))
            else:
                self._publish(piece, on_done)

    def _publish_atomically(self, messages: list[Message], on_done: Published) -> None:
        """Publish all of the messages or none, through the journal."""
        engine, count = self._queue.engine, len(messages)
        first = 0
        began_us = engine.host.now_us()

        def refused(error: CurbstoneError | None) -> None:
            if error is not None:
                engine.host.call_soon(partial(on_done, error, 0, count))

        def stored() -> None:
            self._count_stored(began_us, count)
            on_done(None, first, count)

        def opened(error: CurbstoneError | None) -> None:
            nonlocal first
            try:
                if error is not None:
                    raise error
                if count > AT_ONCE_MAX:
                    raise MessageTooLarge(f"a batch on a cluster has at most {AT_ONCE_MAX} messages")
                first = engine.ids.take(count)
                numbers = range(first, first + count)
                addressed = atomic.to_queue(self._queue, messages, numbers, engine.host.wall_ms())
            except CurbstoneError as wrong:
                refused(wrong)
            else:
                engine.journal.begin(addressed, refused, stored)

        self._declaration.with_groups({group for message in messages for group in message.groups}, opened)

    def _publish_or_refuse(self, messages: list[Message], on_done: Published, error: CurbstoneError | None) -> None:
        if error is not None:
            on_done(error, 0, len(messages))
        else:
            self._publish(messages, on_done)

    def _publish(self, messages: list[Message], on_done: Published) -> None:
        engine = self._queue.engine
        first = engine.ids.take(len(messages))
        now_ms = engine.host.wall_ms()
        began_us = engine.host.now_us()

        job = PublishJob(engine.next_turn, len(messages), first, on_done, partial(self._count_stored, began_us))
        rejection, ttl_ms = self._queue.checks.rejection, int(self._queue.options.ttl * 1000)
        for place, message in enumerate(messages):
            if (error := rejection(message)) is not None:
                job.ended(place, error)
                continue
            message.seq = first + place
            message.timestamp_ms = now_ms
            lives_ms = message.ttl_ms or ttl_ms
            message.expires_ms = now_ms + lives_ms if lives_ms else 0
            self._send(message, job, place, now_ms)
        self._queue.changed()

    def _count_stored(self, began_us: int, count: int) -> None:
        stats, engine = self._queue.stats, self._queue.engine
        stats.published += count
        stats.commits += 1
        engine.commits.took_us.add(engine.host.now_us() - began_us)
        engine.commits.messages.add(count)

    def _send(self, message: Message, job: PublishJob, place: int, now_ms: int) -> None:
        groups = message.groups or (UNNAMED, *self._queue.options.groups)
        on_done = partial(job.ended, place)
        if message.delay_ms > 0:
            job.several(place, len(groups))
            for group in groups:
                self.send_later(message, group, message.delay_ms, 0, on_done)
            return
        identifier = self._queue.message_id(message.seq)
        if len(groups) == 1:
            text = self._queue.engine.names.queue(self._queue.name, groups[0]) if groups[0] else self._declaration.text
            properties = properties_of(message, identifier, now_ms=now_ms)
            self._send_one(3, Outgoing("", text, properties, message.body, True), on_done)
            return
        names = [self._queue.engine.names.queue(self._queue.name, group) for group in groups]
        properties = properties_of(message, identifier, now_ms=now_ms, copies=names[1:])

        def done(error: CurbstoneError | None) -> None:
            if not isinstance(error, QueueFull):
                on_done(error)
                return
            alone = properties_of(message, identifier, now_ms=now_ms)  # without the other queues
            run_concurrently(
                [partial(self._send_one, 3, Outgoing("", name, alone, message.body, True)) for name in names], on_done
            )

        self._send_one(3, Outgoing("", names[0], properties, message.body, True, several=True), done)

    def _send_one(self, times: int, outgoing: Outgoing, on_done: Done) -> None:
        """Publish. If the broker lacks a queue that is in the registry, declare the queue again first."""
        self._queue.engine.publisher.send(
            self._declaration.text, outgoing, partial(self._sent, times, outgoing, on_done)
        )

    def _sent(self, times: int, outgoing: Outgoing, on_done: Done, error: CurbstoneError | None) -> None:
        if error is None or not isinstance(error, NoSuchQueue) or times <= 1 or self._queue.is_closed:
            on_done(error)
            return
        self._declaration.again(
            lambda failed: on_done(failed) if failed else self._send_one(times - 1, outgoing, on_done)
        )

    def store(self, message: Message, delay_ms: int, on_done: Done) -> None:
        """Publish a message of a transaction, which already has its number and its times."""
        message.orders = changed(message.orders, delay_ms=delay_ms)

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
                return
            engine = self._queue.engine
            job = PublishJob(
                engine.next_turn, 1, message.seq, lambda failed, _first, _count: on_done(failed), lambda _count: None
            )
            self._send(message, job, 0, engine.host.wall_ms())
            self._queue.changed()

        self._declaration.with_groups(set(message.groups), opened)

    def send_later(self, message: Message, group: str, delay_ms: int, tries: int, on_done: Done) -> None:
        """Publish a copy of a message to one group after a delay; `tries` are its earlier tries."""
        engine = self._queue.engine

        def bound(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
                return
            now_ms = engine.host.wall_ms()
            properties = properties_of(
                message, self._queue.message_id(message.seq), now_ms=now_ms, due_ms=now_ms + delay_ms, tries=tries
            )
            path = delay_ladder.route(delay_ms, engine.names.queue(self._queue.name, group))
            outgoing = Outgoing(engine.names.step(path.step), path.key, properties, message.body, False)
            engine.publisher.send(self._declaration.text, outgoing, on_done)

        self._declaration.with_ladder(group, bound)
