"""One queue: its parts put together, and the calls of its producers and consumers.

A part imports only the parts below it (see LAYERS in tests/repo/test_tidy.py). What concerns several of them is here: a
turn (`turn`), in which the queue delivers messages and writes, and the end (`close`). `commit/writer.py` applies what a
commit has written. docs/engine.md, "Where a change goes", lists which part does what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from curbstone.core import port
from curbstone.core.batches import OpenBatch, batch_key
from curbstone.core.engine.commit.meta_writer import MetaWriter
from curbstone.core.engine.commit.unique_names import facts_bytes
from curbstone.core.engine.commit.writer import Writer
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.delivery.acks import Acks
from curbstone.core.engine.delivery.auto_delete import AutoDelete
from curbstone.core.engine.delivery.batch_reports import BatchReports
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.engine.delivery.dead_letters import DeadLetters, Mover
from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.leases import Leases
from curbstone.core.engine.delivery.pop import PopPull, Pops
from curbstone.core.engine.delivery.pull import Pull, waiting
from curbstone.core.engine.delivery.requeue import Requeue
from curbstone.core.engine.delivery.timers import IDLE_MS, Timers
from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.fault_barrier import FaultBarrier
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.log.format import BATCH_BYTES, ENTRY_BYTES, Reason, entry_bytes
from curbstone.core.engine.log.log import IDLE_BYTES_MAX, Log
from curbstone.core.engine.log.meta import Meta, meta_reserve
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.shared import Shared
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Turn, Wakeups
from curbstone.core.engine.write_queue import EXPIRY_BYTES, AtomicWrite, Latch, Publish, WriteQueue
from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, MessageTooLarge, Unavailable
from curbstone.core.holders import holders
from curbstone.core.message import Delivery, Message, flags_of
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.stats import Stats
from curbstone.core.values import (
    NOBODY,
    UNKNOWN,
    UNNAMED,
    ClientInfo,
    Counts,
    Done,
    EarlyAnswer,
    Holder,
    IdempotencyKey,
    LastNumber,
    Numbered,
    Popped,
    Published,
    Stale,
    WasThere,
)

logger = logging.getLogger("curbstone.core")

ATOMIC_SHARE = 2
"""An atomic publish may take at most the cap divided by this."""


class BrokerCalls(NamedTuple):
    """What a queue calls of the broker that holds it; all queues share one."""

    mover_of: Callable[[Queue], Mover]
    """Returns what moves messages of a queue to others, for example its dead letters."""
    schedule: Callable[[Turn], None]
    """Has a queue's turn called at the end of the present turn of the loop."""
    delete: Callable[[Queue, CurbstoneError], None]
    """Deletes a queue in a later turn; its consumers get the reason."""
    erasing: Callable[[int, Done], Done]
    """`erasing(uid, on_done)` returns a callback that first erases what is outside of a queue's directory."""
    find: Callable[[QueueName], port.Queue]
    """Returns a queue, or raises NoSuchQueue."""


class Queue:
    """See the module's docstring. `core.engine.broker` makes all queues and holds them."""

    __slots__ = (
        "_auto_delete", "_broker", "_is_resting", "_mover", "_timers", "_when_idle", "acks", "batch_reports", "cleaner",
        "damaged", "dispatcher", "facts", "give_back", "host", "index", "lease", "leases", "log", "message_id",
        "meta_writer", "name", "parts", "pops", "refusal", "requeue", "settle_by_id", "settle_leases", "space", "state",
        "stats", "uid", "wakeups", "watch", "write_queue", "writer",
    )  # fmt: skip

    def __init__(self, shared: Shared, meta: Meta, log: Log, broker: BrokerCalls) -> None:
        self._broker = broker
        host = self.host = FaultBarrier(shared, meta, self._break_down)
        state = self.state = QueueState(shared, meta, host)
        wakeups = self.wakeups = Wakeups(host, partial(host.contain, self.turn), broker.schedule)
        self.name = meta.name
        self.uid = meta.uid
        self.log = log
        self.stats: Stats = state.stats
        self.damaged = state.damaged
        self.refusal = state.refusal
        self._is_resting = False
        self._when_idle: tuple[Callable[[], None], ...] = ()
        """To be called when the queue has ended and no job is under way any more."""
        facts = self.facts = Facts(state, log.room)
        write_queue = self.write_queue = WriteQueue(wakeups)
        index = self.index = Index(state, wakeups, log, self._groups_in_use, write_queue.when_settled)
        parts = self.parts = Parts(state, wakeups, log, index, facts, write_queue)
        self.meta_writer = MetaWriter(parts)
        self.cleaner = Cleaner(parts)
        self.acks = Acks(parts)
        self._mover = broker.mover_of(self)
        dead_letters = DeadLetters(parts, self.acks, self._mover)
        self.requeue = Requeue(parts, self.acks, dead_letters)
        self.dispatcher = Dispatcher(parts, self.acks, self.requeue, dead_letters)
        self.leases = Leases(self.dispatcher)
        self.pops = Pops(self.dispatcher)
        self._timers = Timers(parts, dead_letters, self.leases)
        self.batch_reports: BatchReports | None = None
        """None before the first batch of messages is complete."""
        self.writer = Writer(parts, self.cleaner, self.dispatcher, self.pops, self._end_batches, self.turn)
        # The calls of `core.port.Queue` that one part answers alone are methods of that part.
        self.message_id, self.watch = state.message_id, wakeups.watch
        self.lease, self.settle_leases, self.give_back = self.leases.lease, self.leases.settle, self.leases.give_back
        self.settle_by_id, self.space = self.acks.settle_by_id, self.writer.space
        self._auto_delete: AutoDelete | None = None
        self._watch_use()

    # --- what it is

    @property
    def meta(self) -> Meta:
        """The options as they were set, the groups and the bindings."""
        return self.state.meta

    @property
    def options(self) -> QueueOptions:
        return self.state.options

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    def parse_id(self, text: str) -> int | None:
        uid, dash, seq = text.rpartition("-")
        return int(seq) if dash and uid == self.uid and seq.isascii() and seq.isdigit() and len(seq) < 20 else None

    def store(self, meta: Meta, on_done: Done) -> None:
        """Change the queue's `meta`; raise BadRequest if it becomes too large. `on_done` when that is on disk.

        In memory it changes at once, so that several changes add up.
        """
        data = meta.encode()
        most = meta_reserve(min(meta.options.cap, self.meta_writer.cap)) // 2
        if len(data) > most:
            raise BadRequest(f"the queue's options and bindings take {len(data)} bytes, its cap leaves room for {most}")
        gone = set(self.state.meta.groups) - set(meta.groups)
        keys = self.state.options.keys
        self.state.change(meta)
        if self.state.options.keys != keys:
            for group in self.index.groups.values():
                group.use_keys()
        for name in gone:
            ranges = self.index.drop_group(name)
            if ranges:
                self.write_queue.settled_ranges(name, Reason.PURGE, ranges)
            self.facts.forget_group(name)
            self.wakeups.schedule()
        for name in meta.groups:
            self.index.group(name)
        self.wakeups.wake_all()  # what was paused may continue
        self.wakeups.changed()
        self._watch_use()
        self.meta_writer.store(data, meta.options.cap, on_done)

    # --- producers

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        atomic: bool = False,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
        latch: Latch | None = None,
        early: EarlyAnswer | None = None,
    ) -> None:
        """See `core.port.Queue.publish`, `core.engine.facts.facts` and `core.engine.commit.producer_sequences`.

        Answers are in the order of the calls, whether messages are stored or refused. With a `latch`, messages
        that are published one by one wait in their places until it is open.
        """
        refusal = self.state.publish_refusal()
        if self.state.is_closed or not messages:
            self.host.call_soon(partial(on_done, refusal, 0, len(messages)))
        elif refusal is not None:
            _refuse(self.parts, messages, on_done, refusal)
        elif atomic or key is not None:
            _publish_atomically(self.parts, messages, on_done, key, numbered)
        else:
            _publish_each(self.parts, messages, on_done, numbered, latch, early)

    def last_number(self, producer: bytes) -> LastNumber | None:
        return self.facts.last_number(producer)

    # --- consumers

    def subscribe(
        self,
        deliver: Callable[[list[Delivery]], None],
        *,
        window: int,
        weight: int = 1,
        group: str = UNNAMED,
        auto: bool = False,
        client_info: ClientInfo = UNKNOWN,
        on_closed: Callable[[CurbstoneError], None],
    ) -> Consumer:
        consumer = Consumer(
            *(self, self.dispatcher, deliver, client_info),
            window=window,
            weight=weight,
            group=group,
            auto=auto,
            on_closed=on_closed,
        )
        refusal = Unavailable(self.state.broken) if self.state.broken else self.index.dynamic_groups.refusal([group])
        if refusal is None:
            self.dispatcher.attach(consumer)
        else:
            consumer.closed = True
            self.host.call_soon(partial(on_closed, refusal))
        return consumer

    def pop(
        self, on_done: Popped, *, group: str = UNNAMED, wait_ms: int = 0, is_wanted: Callable[[], bool] | None = None
    ) -> Pull:
        return PopPull(self.dispatcher, self.pops, group, wait_ms, on_done, is_wanted).begin()

    def extend(self, tokens: list[str], duration_ms: int, on_done: Stale, owner: str = NOBODY) -> None:
        self.host.call_soon(partial(on_done, None, self.leases.extend(tokens, duration_ms, owner)))

    # --- looking

    def consumers(self) -> list[Consumer]:
        """Return the consumers of all groups, except those that are paused."""
        return [each for each in self.dispatcher.attached if isinstance(each, Consumer) and not each.paused]

    def holders(self, seq: int = 0) -> list[Holder]:
        consumers = [each for each in self.dispatcher.attached if isinstance(each, Consumer)]
        return holders(consumers, self.leases.all(), waiting(self.dispatcher), seq)

    def _watch_use(self) -> None:
        """Delete the queue when it has been unused for as long as its option `unused` says."""
        if self._auto_delete is None and self.options.unused is not None:
            self._auto_delete = AutoDelete(self.dispatcher, self.leases, partial(self._broker.delete, self))
        if self._auto_delete is not None:
            self._auto_delete.option_changed()

    def refresh(self, on_done: Done) -> None:
        """See `core.port.Queue.refresh`. Counts are always up to date, because no other server uses the queue."""
        self.host.call_soon(partial(on_done, None))

    def counts(self, group: str = UNNAMED) -> Counts:
        held = self.log.bytes + self.state.meta_bytes if self.meta_writer.is_open else 0
        consumers, oldest_ms = len(self.consumers()), self.index.runs.oldest_ms
        found = self.index.groups.get(group)
        if found is None:
            return Counts(0, 0, 0, held, consumers, oldest_ms)
        rdy, wip, delayed = found.rdy, len(found.in_flight), found.delayed
        limited = self.parts.limits.held_back(group, wip, rdy)
        if rdy and not limited[0]:
            limited = found.held_back_by_keys()
        return Counts(rdy, wip, delayed, held, consumers, oldest_ms, found.first_due_ms() if delayed else 0, *limited)

    def by_priority(self, group: str = UNNAMED) -> dict[int, int]:
        return self.index.by_priority(group)

    # --- batches of messages

    def batches(self) -> list[OpenBatch]:
        tallies, reports = self.parts.tallies, self.batch_reports
        refused = reports.refused if reports is not None else {}
        return [OpenBatch(tally, refused.get(key, "")) for key, tally in tallies.open.items()] if tallies else []

    def drop_batch(self, batch: str, on_done: WasThere) -> None:
        tallies, key, refusal = self.parts.tallies, batch_key(batch), self.state.refusal()
        is_there = tallies is not None and key in tallies.open
        if refusal is None and tallies is not None and key in tallies.reporting:
            refusal = Conflict(f"batch {batch} has ended: its report is on its way")
        if refusal is not None or tallies is None or not is_there:
            self.host.call_soon(partial(on_done, refusal, False))
            return
        tallies.drop(key)
        self.write_queue.must_write = True
        self.write_queue.when_committed(lambda error: on_done(error, error is None))

    def _end_batches(self, keys: list[bytes]) -> None:
        if self.batch_reports is None:
            self.batch_reports = BatchReports(self.parts, self._mover)
        self.batch_reports.send(keys)

    # --- turns

    def turn(self) -> None:
        """Run timers that are due, deliver what is ready, write what waits, and call the watchers.

        A queue has a turn after each request, and again whenever a commit has ended.
        """
        wakeups = self.wakeups
        if self.state.is_closed or not self.meta_writer.is_open:
            self._jobs_may_have_ended()
            return
        if wakeups.is_due:
            wakeups.is_due = False
            self._timers.run()
        if wakeups.all_are_woken:
            wakeups.all_are_woken = False
            if self.dispatcher.round_robins:
                wakeups.woken.update(dict.fromkeys(self.dispatcher.round_robins))
        if wakeups.woken:
            woken, wakeups.woken = wakeups.woken, {}
            for name in woken:
                self.dispatcher.dispatch(name)
        self.writer.flush()
        if not (self.writer.is_busy or self._is_resting) and self._is_idle():
            self._is_resting = True
            self.host.call_later(IDLE_MS, self._rest)
        if wakeups.has_changed:
            wakeups.has_changed = False
            for fn in list(wakeups.watchers):
                self.host.notify(fn)

    def opened(self) -> None:
        """Begin to serve the queue: its directory exists, and its log has been read."""
        self.state.committed_end = self.state.next_seq
        self.meta_writer.opened()
        if self.parts.tallies is not None:  # not before transactions are recovered that end some
            self.host.call_soon(partial(self._end_batches, self.parts.tallies.complete))
        if not (self._is_idle() and self.wakeups.is_empty) or self.log.bytes > IDLE_BYTES_MAX:
            self.wakeups.schedule()

    def _is_idle(self) -> bool:
        """Return whether the queue is empty and has nothing to do, so that its log may shrink."""
        return not len(self.index.runs) and self.writer.is_idle

    def _rest(self) -> None:
        self._is_resting = False
        if self.state.is_closed or not self._is_idle():
            return
        self._timers.sweep()
        if self.cleaner.trim():
            self.wakeups.schedule()

    def when_idle(self, fn: Callable[[], None]) -> None:
        """Call `fn` once no job is under way in the directory of the queue, which has ended."""
        self._when_idle += (fn,)
        self._jobs_may_have_ended()

    def _jobs_may_have_ended(self) -> None:
        if self._when_idle and not self.is_working:
            waiting, self._when_idle = self._when_idle, ()
            for fn in waiting:
                fn()

    @property
    def is_working(self) -> bool:
        return self.writer.is_busy or self.meta_writer.is_working

    def _groups_in_use(self) -> set[str]:
        return self.writer.owed_groups | self.dispatcher.round_robins.keys()

    # --- trouble, and the end

    def _break_down(self, error: Exception) -> None:
        """Stop serving the queue after an unexpected exception. All callers get an error, and health reports it."""
        state = self.state
        if state.broken:
            return
        what = f"broke down, and is not served until the next start: {type(error).__name__}: {error}"
        logger.error("%s broke down", state.label, exc_info=error, extra={"queue": state.label})
        state.broken = f"{state.label} {what}"
        refusal = Unavailable(state.broken)
        self.host.notify(self.writer.abandon, refusal)
        was_closed, state.is_closed = state.is_closed, True
        self.host.notify(self._end, refusal)
        if not was_closed:  # else it was deleted, and nothing would end the alarm
            state.shared.alarms.note(state.label, what)
        self.wakeups.schedule()  # the deletion may wait for the end of a job

    def fail_to_open(self, error: CurbstoneError) -> None:
        """End a queue that could not be created, and refuse everything that waits for it."""
        self.state.is_closed = True
        self.meta_writer.failed(error)
        self._end(error)

    def close(self, error: CurbstoneError) -> None:
        """End the queue: close its consumers, and refuse publishes that wait."""
        if not self.state.is_closed:
            self.state.is_closed = True
            self._end(error)

    def _end(self, error: CurbstoneError) -> None:
        self.state.shared.alarms.over(self.state.label)
        self.writer.refuse_all(error)
        self.dispatcher.end(error)
        self.leases.end_all()
        self.cleaner.end(error)
        self.index.reader.close()
        self.wakeups.end()
        for fn in list(self.wakeups.watchers):
            self.host.notify(fn)


# --- publishes on their way into the write queue; one that is refused waits for its turn, so answers keep their order


def _publish_atomically(
    parts: Parts, messages: list[Message], on_done: Published, key: IdempotencyKey | None, numbered: Numbered | None
) -> None:
    cap = parts.state.options.cap
    tries = RELEASE_BYTES * sum(map(parts.index.entitled_count, messages))
    size = sum(map(entry_bytes, messages)) + EXPIRY_BYTES * len(messages) + BATCH_BYTES + tries
    size += facts_bytes(parts, messages)
    publish = AtomicWrite(messages, on_done, size)
    publish.numbered = numbered
    publish.key = key
    publish.refusal = next(filter(None, map(parts.state.too_large, messages)), None)
    if publish.refusal is None and size > cap // ATOMIC_SHARE:
        publish.refusal = MessageTooLarge(f"{size} bytes at once can never fit the queue's cap of {cap} bytes")
    parts.write_queue.publish(publish)


def _publish_each(
    parts: Parts,
    messages: list[Message],
    on_done: Published,
    numbered: Numbered | None,
    latch: Latch | None = None,
    early: EarlyAnswer | None = None,
) -> None:
    """Publish messages one by one; those that are too large are refused in their turn."""
    if latch is not None:
        latch.when_open(parts.wakeups.schedule)
    most = parts.state.options.max_message_size
    size = 0
    are_plain = True
    flags = 0
    for message in messages:
        body_bytes = len(message.body)
        if body_bytes > most:
            _publish_those_that_fit(parts, messages, on_done, numbered, latch)
            return
        size += ENTRY_BYTES + len(message.headers) + body_bytes
        orders = message.orders
        if orders is not None:
            flags |= orders.flags
            if orders.delay_ms or orders.ttl_ms or orders.groups:
                are_plain = False
        if message.expires_ms:
            are_plain = False
    size = size if are_plain else 0
    parts.write_queue.publish(Publish(messages, on_done, numbered, latch, early, size, flags))


def _publish_those_that_fit(
    parts: Parts, messages: list[Message], on_done: Published, numbered: Numbered | None, latch: Latch | None
) -> None:
    start = 0
    for place, message in enumerate(messages):
        if (refusal := parts.state.too_large(message)) is not None:
            _put(parts, messages[start:place], on_done, numbered and numbered.behind(start), latch)
            _refuse(parts, [message], on_done, refusal)
            start = place + 1
    _put(parts, messages[start:], on_done, numbered and numbered.behind(start), latch)


def _put(
    parts: Parts, messages: list[Message], on_done: Published, numbered: Numbered | None, latch: Latch | None
) -> None:
    if messages:
        parts.write_queue.publish(Publish(messages, on_done, numbered, latch, flags=flags_of(messages)))


def _refuse(parts: Parts, messages: list[Message], on_done: Published, refusal: CurbstoneError) -> None:
    """Refuse messages in their turn."""
    publish = Publish(messages, on_done)
    publish.refusal = refusal
    parts.write_queue.publish(publish)
