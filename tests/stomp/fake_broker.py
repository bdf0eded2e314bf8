"""An engine in memory for the session's tests: the interface of `curbstone.core`, no disk, turns by hand.

Nothing is called back before `turn()`. It also keeps a log of the calls that adapters make, so that
tests can see how much was handed over at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from curbstone.core.errors import CurbstoneError, EventRefused, NoSuchQueue, QueueFull, StaleDelivery
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName
from curbstone.core.stats import Stats
from curbstone.core.values import Capability, Health, IdempotencyKey, Leased, Numbered

START_MS = 1_700_000_000_000


@dataclass
class FakeCounts:
    rdy: int
    wip: int
    delayed: int
    bytes: int


class Item:
    """A message in a queue, and what each group still has to do with it."""

    def __init__(self, message: Message, due_ms: int) -> None:
        self.message = message
        self.due_ms = due_ms
        self.tries = 0
        self.wip = False


class FakeConsumer:
    def __init__(self, queue: FakeQueue, deliver: Callable[[list[Delivery]], None], **options: Any) -> None:
        self.queue = queue
        self.deliver = deliver
        self.window: int = options["window"]
        self.weight: int = options["weight"]
        self.group: str = options["group"]
        self.auto: bool = options["auto"]
        self.on_closed: Callable[[CurbstoneError], None] = options["on_closed"]
        self.unsettled: dict[int, Delivery] = {}
        self.held = self.paused = self.closed = False

    def when_open(self, on_open: Callable[[], None]) -> None:
        on_open()

    @property
    def room(self) -> int:
        if self.held or self.paused or self.closed:
            return 0
        return 256 if self.auto else self.window - len(self.unsettled)

    def ack(self, seqs: Sequence[int], on_done: Callable[[Any], None] | None = None) -> None:
        self._take(seqs)
        self.queue.broker.calls.append(("ack", self.queue.name.queue, list(seqs)))
        for seq in seqs:
            self.queue.items[self.group].pop(seq, None)
        self.queue.broker.later(on_done)
        self.queue.changed()

    def nack(
        self,
        seqs: Sequence[int],
        delay_ms: int | None = None,
        error: str = "",
        on_done: Callable[[Any], None] | None = None,
    ) -> None:
        self._take(seqs)
        self.queue.broker.calls.append(("nack", self.queue.name.queue, list(seqs), delay_ms, error))
        self._release(seqs, delay_ms or 0)
        self.queue.broker.later(on_done)

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Callable[[Any], None] | None = None) -> None:
        self._take(seqs)
        self.queue.broker.calls.append(("reject", self.queue.name.queue, list(seqs), error))
        for seq in seqs:
            self.queue.items[self.group].pop(seq, None)
        self.queue.broker.later(on_done)
        self.queue.changed()

    def hold(self) -> None:
        self.held = True

    def resume(self) -> None:
        self.held = False
        self.queue.changed()

    def resize(self, window: int) -> None:
        self.window = window
        self.queue.changed()

    def pause(self) -> None:
        self.paused = True

    def close(self) -> None:
        self.closed = True
        seqs = list(self.unsettled)
        self.unsettled.clear()
        self._release(seqs, 0)
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)

    def check(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            if seq not in self.unsettled:
                raise StaleDelivery(f"delivery {seq} is not unsettled")

    def _take(self, seqs: Sequence[int]) -> None:
        self.check(seqs)
        for seq in seqs:
            del self.unsettled[seq]

    def _release(self, seqs: Sequence[int], delay_ms: int) -> None:
        for seq in seqs:
            item = self.queue.items[self.group].get(seq)
            if item is not None:
                item.wip = False
                item.tries += 1
                item.due_ms = self.queue.broker.now_ms + delay_ms
        self.queue.changed()


def left_out(queue: FakeQueue, error: CurbstoneError) -> bool:
    """Whether nobody is told that a queue refused a message, see `core.events.IsLeftOut`; one that is full ends."""
    if queue.name.is_private and isinstance(error, QueueFull):
        queue.broker.end(queue, error)
        return True
    return isinstance(error, NoSuchQueue)


class FakeQueue:
    def __init__(self, broker: FakeBroker, name: QueueName) -> None:
        self.broker = broker
        self.name = name
        self.uid = f"u{len(broker.all) + 1}"
        self.stats = Stats()
        self.items: dict[str, dict[int, Item]] = {"": {}}
        self.consumers: list[FakeConsumer] = []
        self.watchers: list[Callable[[], None]] = []
        self.last_seq = 0
        self.deleted = False
        self.refuse: CurbstoneError | None = None
        self.changes: Mapping[str, object] = {}

    def message_id(self, seq: int) -> str:
        return f"{self.uid}-{seq}"

    def parse_id(self, text: str) -> int | None:
        uid, _, seq = text.rpartition("-")
        return int(seq) if uid == self.uid and seq.isdigit() else None

    def publish(
        self,
        messages: list[Message],
        on_done: Callable[[Any, int, int], None],
        *,
        atomic: bool = False,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
    ) -> None:
        self.broker.calls.append(("publish", self.name.queue, [message.body for message in messages]))
        count = len(messages)
        error = self.refuse
        if error is not None:
            self.broker.queue_call(lambda: on_done(error, 0, count))
            return
        first = self.last_seq + 1
        for message in messages:
            self.add(message)
        self.broker.queue_call(lambda: on_done(None, first, count))
        self.changed()

    def add(self, message: Message) -> None:
        self.last_seq += 1
        message.seq = self.last_seq
        message.timestamp_ms = self.broker.now_ms
        for group in message.groups or ("",):
            due_ms = self.broker.now_ms + message.delay_ms
            self.items.setdefault(group, {})[message.seq] = Item(message, due_ms)

    def subscribe(self, deliver: Callable[[list[Delivery]], None], **options: Any) -> FakeConsumer:
        consumer = FakeConsumer(self, deliver, **options)
        self.items.setdefault(consumer.group, {})
        self.consumers.append(consumer)
        self.changed()
        return consumer

    def counts(self, group: str = "") -> FakeCounts:
        items = self.items.get(group, {}).values()
        delayed = sum(1 for item in items if not item.wip and item.due_ms > self.broker.now_ms)
        wip = sum(1 for item in items if item.wip)
        size = sum(len(item.message.body) for item in items)
        return FakeCounts(len(items) - delayed - wip, wip, delayed, size)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        self.watchers.append(fn)
        return lambda: self.watchers.remove(fn)

    def changed(self) -> None:
        if self not in self.broker.dirty:
            self.broker.dirty.append(self)
            self.broker.wake()

    def dispatch(self) -> None:
        for group, items in self.items.items():
            consumers = [c for c in self.consumers if c.group == group and not (c.held or c.paused)]
            if not consumers:
                continue
            ready = [i for _, i in sorted(items.items()) if not i.wip and i.due_ms <= self.broker.now_ms]
            batches: dict[int, list[Delivery]] = {}
            for turn, item in enumerate(ready):
                takers = [c for c in consumers if c.auto or len(c.unsettled) < c.window]
                if not takers:
                    break
                consumer = takers[turn % len(takers)]
                delivery = Delivery(item.message, item.tries, max(item.due_ms, item.message.timestamp_ms))
                if consumer.auto:
                    del items[item.message.seq]
                else:
                    item.wip = True
                    consumer.unsettled[item.message.seq] = delivery
                batches.setdefault(id(consumer), []).append(delivery)
            for consumer in consumers:
                if batch := batches.get(id(consumer)):
                    consumer.deliver(batch)
        for watcher in list(self.watchers):
            watcher()


class FakeTransaction:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._steps: list[Callable[[], None]] = []
        self._checks: list[Callable[[], None]] = []

    def publish(self, queue: FakeQueue, message: Message) -> None:
        def step() -> None:
            queue.add(message)
            queue.changed()

        self._steps.append(step)

    def publish_event(self, event: str, message: Message, _project: str = "") -> None:
        def step() -> None:
            for name in list(self._broker.bound.get(event, [])):
                queue = self._broker.all[name]
                if queue.refuse is not None and left_out(queue, queue.refuse):
                    continue
                queue.add(Message(message.body, message.headers))
                queue.changed()

        self._steps.append(step)

    def ack(self, consumer: FakeConsumer, seqs: Sequence[int]) -> None:
        self._settle(consumer, seqs, lambda: consumer.ack(seqs))

    def nack(self, consumer: FakeConsumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        self._settle(consumer, seqs, lambda: consumer.nack(seqs, delay_ms, error))

    def reject(self, consumer: FakeConsumer, seqs: Sequence[int], error: str = "") -> None:
        self._settle(consumer, seqs, lambda: consumer.reject(seqs, error))

    def _settle(self, consumer: FakeConsumer, seqs: Sequence[int], step: Callable[[], None]) -> None:
        consumer.check(seqs)
        self._checks.append(lambda: consumer.check(seqs))
        self._steps.append(step)

    def commit(self, on_done: Callable[[Any], None]) -> None:
        self._broker.calls.append(("commit", len(self._steps)))
        try:
            for check in self._checks:
                check()
        except StaleDelivery as error:
            stale = error
            self._broker.queue_call(lambda: on_done(stale))
            return
        for step in self._steps:
            step()
        self._broker.later(on_done)


class FakeBroker:
    """Queues in memory. `turn()` runs what is due until nothing is."""

    shares_queues = False

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.all: dict[QueueName, FakeQueue] = {}
        self.bound: dict[str, list[QueueName]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.dirty: list[FakeQueue] = []
        self._pending: list[Callable[[], None]] = []
        self.leased = Leased()

    def queues(self) -> list[FakeQueue]:
        return [queue for queue in self.all.values() if not queue.name.is_private]

    def private_queues(self) -> list[FakeQueue]:
        return [queue for queue in self.all.values() if queue.name.is_private]

    def end(self, queue: FakeQueue, reason: CurbstoneError) -> None:
        self.delete(queue.name, lambda _existed: None, reason)

    def get(self, name: QueueName) -> FakeQueue:
        if name not in self.all:
            raise NoSuchQueue(f"there is no queue {name}")
        return self.all[name]

    def ensure(self, name: QueueName) -> FakeQueue:
        if name not in self.all:
            self.all[name] = FakeQueue(self, name)
        return self.all[name]

    def declare(self, name: QueueName, changes: Mapping[str, object], on_done: Callable[[Any], None]) -> None:
        self.ensure(name).changes = changes
        self.later(on_done)

    def bindings(self, name: QueueName) -> frozenset[str]:
        return frozenset(event for event, names in self.bound.items() if name in names)

    def unused_s(self, _name: QueueName) -> float | None:
        return None

    def delete(
        self,
        name: QueueName,
        on_done: Callable[[bool | CurbstoneError], None],
        reason: CurbstoneError | None = None,
    ) -> None:
        queue = self.all.pop(name, None)
        if queue is not None:
            for consumer in list(queue.consumers):
                self.queue_call(partial(consumer.on_closed, reason or NoSuchQueue(f"queue {name} was deleted")))
            for names in self.bound.values():
                if name in names:
                    names.remove(name)
        self.queue_call(lambda: on_done(queue is not None))

    def bind(self, event: str, name: QueueName, on_done: Callable[[Any], None], _project: str = "") -> None:
        self.bound.setdefault(event, []).append(name)
        self.later(on_done)

    def unbind(self, event: str, name: QueueName, on_done: Callable[[Any], None], _project: str = "") -> None:
        self.bound[event].remove(name)
        self.later(on_done)

    def reply(self, name: QueueName, messages: list[Message], on_done: Callable[[Any, int, int], None]) -> bool:
        queue = self.all.get(name)
        if queue is None:
            return False

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            on_done(None if error is not None and left_out(queue, error) else error, first_seq, count)

        queue.publish(messages, done)
        return True

    def publish_event(
        self, event: str, messages: list[Message], on_done: Callable[[Any, int, int], None], _project: str = ""
    ) -> None:
        refused: dict[QueueName, CurbstoneError] = {}
        for name in list(self.bound.get(event, [])):
            queue = self.all[name]
            if queue.refuse is not None:
                if not left_out(queue, queue.refuse):
                    refused[name] = queue.refuse
                continue
            for message in messages:
                queue.add(Message(message.body, message.headers))
            queue.changed()
        error = EventRefused(refused, 0) if refused else None
        self.queue_call(lambda: on_done(error, 0, len(messages)))

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self)

    def health(self) -> Health:
        return Health(True, [], "always")

    def later(self, on_done: Callable[[Any], None] | None) -> None:
        if on_done is not None:
            self.queue_call(lambda: on_done(None))

    def queue_call(self, fn: Callable[[], None]) -> None:
        self._pending.append(fn)
        self.wake()

    def wake(self) -> None:
        """Hook: a turn is wanted."""

    def turn(self) -> None:
        while self._pending or self.dirty:
            pending, self._pending = self._pending, []
            for fn in pending:
                fn()
            dirty, self.dirty = self.dirty, []
            for queue in dirty:
                queue.dispatch()

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for queue in self.all.values():
            queue.changed()
        self.turn()

    def bodies(self, queue: str, project: str = "default") -> list[bytes]:
        items: Mapping[int, Item] = self.all[QueueName(project, queue)].items[""]
        return [item.message.body for _, item in sorted(items.items())]
