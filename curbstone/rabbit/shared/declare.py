"""Declares a queue in RabbitMQ. Each gateway does this once before it uses a queue.

All calls are idempotent, so other gateways may do the same, and one of them may die half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import Conflict, CurbstoneError, NoSuchQueue
from curbstone.core.values import UNNAMED, AllDone, Done
from curbstone.rabbit.amqp.link import unavailable
from curbstone.rabbit.amqp.port import NOT_FOUND, AmqpError, Channel
from curbstone.rabbit.shared.delay_ladder import end_pattern
from curbstone.rabbit.shared.registry import Definition
from curbstone.rabbit.shared.topology import event_key, private_arguments, queue_arguments

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

GROUPS_MAX = 1000
Step = Callable[[Done], None]


def run_concurrently(steps: Sequence[Step], on_done: Done) -> None:
    """Run steps concurrently. `on_done` is called after the last, with the first error; now if there are none."""
    done = AllDone(on_done, len(steps))
    for step in steps:
        step(done)
    if not steps:
        on_done(None)


def run_in_order(steps: Sequence[Step], on_done: Done) -> None:
    """Run steps in order, until one fails."""

    def proceed(place: int, error: CurbstoneError | None) -> None:
        if error is not None or place == len(steps):
            on_done(error)
        else:
            steps[place](partial(proceed, place + 1))

    proceed(0, None)


class Declaration:
    """The objects of one queue in RabbitMQ."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._names = queue.engine.names
        self._calls = queue.engine.calls_for(queue.name)
        self.text = self._names.queue(queue.name)
        """The name of the queue in RabbitMQ."""
        self.is_open = False
        self.groups: set[str] = set()
        """The groups whose queues are known to exist."""
        self._wanted: set[str] = set()
        self._laddered: set[str] = set()
        self._is_working = False
        self._is_new = False
        """Whether this gateway is creating the queue, and the registry has not accepted it yet."""
        self._waiting: list[Done] = []
        self._refused: CurbstoneError | None = None

    def make(self) -> None:
        """Enter the new queue into the registry, and then declare it."""
        self._is_new = not self._queue.name.is_private
        self._start()

    def when_open(self, on_open: Done) -> None:
        """Call now if the queue is known to exist, otherwise once it does, or with the error."""
        self.with_groups(set(), on_open)

    def with_groups(self, groups: set[str], on_open: Done) -> None:
        """Like `when_open`, also for the queues of these groups."""
        groups = groups - {UNNAMED}
        if self._refused is not None:
            on_open(self._refused)
        elif self.is_open and groups <= self.groups and not self._waiting:
            on_open(None)
        else:
            self._wanted |= groups
            self._waiting.append(on_open)
            self._start()

    def _start(self) -> None:
        if not self._is_working and self._refused is None:
            self._is_working = True
            run_in_order([self._register, self._register_groups, self._declare, self._bind], self._done)

    def _done(self, error: CurbstoneError | None) -> None:
        self._is_working = False
        self.is_open = error is None and self._refused is None
        waiting, self._waiting = self._waiting, []
        for on_open in waiting:
            on_open(self._refused or error)
        if error is None and not self._wanted <= self.groups:
            self._start()
        elif error is not None:
            self._wanted.clear()

    # --- the steps

    def _register(self, on_done: Done) -> None:
        if not self._is_new:
            on_done(None)
            return

        def registered(error: CurbstoneError | None) -> None:
            self._is_new = error is not None
            if error is not None:
                self._queue.engine.declare_failed(self._queue, error)
            on_done(error)

        self._queue.engine.propose(self._queue.definition.as_entry(), registered)

    def _register_groups(self, on_done: Done) -> None:
        queue = self._queue
        unknown = sorted(self._wanted - queue.definition.groups)
        if queue.name.is_private or not unknown:
            on_done(None)
        elif len(queue.definition.groups) + len(unknown) > GROUPS_MAX:
            on_done(Conflict(f"a queue on a cluster has at most {GROUPS_MAX} groups"))
        else:
            entries = [{"do": "group", "uid": queue.uid, "group": group} for group in unknown]
            run_concurrently([partial(queue.engine.propose, entry) for entry in entries], on_done)

    def _declare(self, on_done: Done) -> None:
        groups = (set(self._queue.options.groups) | self._wanted) - self.groups
        steps: list[Step] = [] if self.is_open else [partial(self._declare_one, UNNAMED)]
        steps += [partial(self._declare_one, group) for group in sorted(groups)]

        def declared(error: CurbstoneError | None) -> None:
            if error is None:
                self.groups |= groups
            on_done(error)

        run_concurrently(steps, declared)

    def _declare_one(self, group: str, on_done: Done) -> None:
        queue = self._queue
        text = self._names.queue(queue.name, group)
        private = queue.name.is_private
        arguments = (
            private_arguments(self._names, queue.options, queue.engine.ids.gateway)
            if private
            else queue_arguments(self._names, text, queue.options)
        )

        def run(channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
            channel.declare_queue(
                text,
                lambda error, _messages, _consumers: done(error),
                exclusive=private,
                durable=not private,
                arguments=arguments,
            )

        self._call(run, on_done, f"queue {queue.name} can't be created")

    def _bind(self, on_done: Done) -> None:
        queue = self._queue
        steps = [
            partial(self._bind_one, group, event)
            for event in sorted(queue.definition.bindings)
            for group in (UNNAMED, *queue.options.groups)
        ]
        if queue.options.dead_letter:
            steps.append(partial(self._bind_dead, queue.options.dead_letter))
        run_concurrently([] if self.is_open else steps, on_done)

    def _bind_one(self, group: str, event: str, on_done: Done, *, unbind: bool = False) -> None:
        text = self._names.queue(self._queue.name, group)
        key = event_key(self._queue.name, event)

        def run(channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
            (channel.unbind_queue if unbind else channel.bind_queue)(text, self._names.events, key, done)

        self._call(run, on_done, f"queue {self._queue.name} can't be bound")

    def _bind_dead(self, dead_letter: str, on_done: Done, *, unbind: bool = False) -> None:
        """Create the dead-letter queue, and bind it to the messages of this queue that expire in the broker."""
        engine = self._queue.engine
        target = engine.ensure(engine.name_of(dead_letter))
        texts = [self._names.queue(self._queue.name, group) for group in (UNNAMED, *self._queue.options.groups)]

        def bind(text: str, done: Done) -> None:
            def run(channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
                (channel.unbind_queue if unbind else channel.bind_queue)(
                    target.declaration.text, self._names.dead, text, done
                )

            self._call(run, done, f"the dead letters of {self._queue.name} can't be bound")

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
            else:
                run_concurrently([partial(bind, text) for text in texts], on_done)

        target.when_open(opened)

    def _call(
        self,
        run: Callable[[Channel, Callable[[AmqpError | None], None]], None],
        on_done: Done,
        what: str,
    ) -> None:
        self._calls.do(run, lambda error: on_done(unavailable(error, what) if error else None))

    # --- changes

    def changed(self, before: Definition, after: Definition, on_done: Done) -> None:
        """Carry out a change of the registry in RabbitMQ. The definition `after` is already in force."""
        steps: list[Step] = []
        old, new = set(before.options.groups), set(after.options.groups)
        steps += [partial(self._bind_one, UNNAMED, event) for event in sorted(after.bindings - before.bindings)]
        steps += [
            partial(self._bind_one, group, event, unbind=True)
            for event in sorted(before.bindings - after.bindings)
            for group in (UNNAMED, *sorted(old & new))
        ]
        steps += [
            partial(self._bind_one, group, event)
            for group in sorted(new)
            for event in sorted(after.bindings if group not in old else after.bindings - before.bindings)
        ]
        steps += [partial(self._delete_one, group) for group in sorted(old - new)]
        self.groups -= old - new
        self._laddered -= old - new
        if before.options.dead_letter != after.options.dead_letter or (old != new and after.options.dead_letter):
            if before.options.dead_letter and before.options.dead_letter != after.options.dead_letter:
                steps.append(partial(self._bind_dead, before.options.dead_letter, unbind=True))
            if after.options.dead_letter:
                steps.append(partial(self._bind_dead, after.options.dead_letter))

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error)
            else:
                run_concurrently(steps, on_done)

        self.with_groups(new, opened)

    def with_ladder(self, group: str, on_done: Done) -> None:
        """Bind a group's queue to the end of the ladder."""
        if group in self._laddered:
            on_done(None)
            return
        text = self._names.queue(self._queue.name, group)

        def run(channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
            channel.bind_queue(text, self._names.due, end_pattern(text), done)

        def bound(error: CurbstoneError | None) -> None:
            if error is None:
                self._laddered.add(group)
            on_done(error)

        self._call(run, bound, f"delays for queue {self._queue.name} can't be set up")

    def again(self, on_open: Done) -> None:
        """Declare the queue again, because the broker has lost it."""
        if self.is_open:
            self.is_open = False
            self._wanted |= self.groups
            self.groups.clear()
            self._laddered.clear()
        self.when_open(on_open)

    # --- checks, purge, deletion

    def _texts(self) -> list[str]:
        groups = self._queue.definition.groups | self.groups
        return [self._names.queue(self._queue.name, group) for group in (UNNAMED, *sorted(groups))]

    def check(self, on_done: Done) -> None:
        """Check that the queue exists. `on_done` gets NoSuchQueue if it does not."""

        def checked(error: AmqpError | None) -> None:
            if error is not None and error.code == NOT_FOUND:
                on_done(NoSuchQueue(f"no such queue: {self._queue.name}"))
            else:
                on_done(unavailable(error, f"queue {self._queue.name} can't be checked") if error else None)

        self._calls.do(
            lambda channel, done: channel.declare_queue(self.text, lambda error, *_: done(error), passive=True), checked
        )

    def count(self, group: str, on_done: Callable[[AmqpError | None, int, int], None]) -> None:
        """Count the ready messages and the consumers; 0 if unknown."""
        text = self._names.queue(self._queue.name, group)
        found = (0, 0)

        def run(channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
            def declared(error: AmqpError | None, messages: int, consumers: int) -> None:
                nonlocal found
                found = (messages, consumers)
                done(error)

            channel.declare_queue(text, declared, passive=True)

        self._calls.do(run, lambda error: on_done(error, *found))

    def purge(self, on_done: Callable[[CurbstoneError | None, int], None]) -> None:
        """Remove the ready messages of all groups; `on_done` gets the number of removed entries."""
        removed = 0

        def purge_one(text: str, done: Done) -> None:
            def run(channel: Channel, ended: Callable[[AmqpError | None], None]) -> None:
                def purged(error: AmqpError | None, count: int) -> None:
                    nonlocal removed
                    removed += count
                    ended(error)

                channel.purge_queue(text, purged)

            self._call(run, done, f"queue {self._queue.name} can't be purged")

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error, 0)
            else:
                run_concurrently(
                    [partial(purge_one, text) for text in self._texts()], lambda failed: on_done(failed, removed)
                )

        self.with_groups(set(self._queue.definition.groups), opened)

    def _delete_one(self, group: str, on_done: Done) -> None:
        text = self._names.queue(self._queue.name, group)
        what = f"queue {self._queue.name} can't be deleted"
        self._call(lambda channel, done: channel.delete_queue(text, done), on_done, what)

    def delete(self, on_done: Done) -> None:
        """Delete the queue and those of all its groups."""
        groups = self._queue.definition.groups | self.groups
        run_concurrently([partial(self._delete_one, group) for group in (UNNAMED, *sorted(groups))], on_done)

    def close(self, error: CurbstoneError) -> None:
        """Refuse all waiting calls: the queue is gone or the server is stopping."""
        self._refused = error
        self.is_open = False
        waiting, self._waiting = self._waiting, []
        for on_open in waiting:
            on_open(error)
