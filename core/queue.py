"""One queue: its log, its groups, and what its consumers and producers ask of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.alone import AloneQueue
from curbstone.core.breakdown import QueueHost, tell
from curbstone.core.consumer import Consumer, Taker
from curbstone.core.delivery.dead import Deaths
from curbstone.core.delivery.dispatch import Rings
from curbstone.core.delivery.disuse import Disuse
from curbstone.core.delivery.expiry import Expiry
from curbstone.core.delivery.leasing import Leasing
from curbstone.core.delivery.popping import Pop, Popped, Popping
from curbstone.core.delivery.settling import Settling
from curbstone.core.delivery.timers import Timers
from curbstone.core.delivery.waiters import Waiter
from curbstone.core.errors import CurbstoneError, MessageTooLarge, NoSuchQueue, Unavailable
from curbstone.core.log.commit import Commit
from curbstone.core.log.format import BATCH_BYTES, Reason, decode_notes, entry_bytes
from curbstone.core.log.log import Log
from curbstone.core.log.meta import Meta
from curbstone.core.log.opening import Opening
from curbstone.core.log.publish import Publish
from curbstone.core.log.room import RELEASE_BYTES
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName
from curbstone.core.notes.keys import Keys
from curbstone.core.notes.staged_marks import StagedMarks
from curbstone.core.pending.group import Group
from curbstone.core.pending.pending import Pending
from curbstone.core.pending.runs import Run
from curbstone.core.reading.browse import Peek, purge
from curbstone.core.reading.groups import ReadingGroups
from curbstone.core.reading.holders import holders
from curbstone.core.reading.redrive import Redrive
from curbstone.core.stats import Stats
from curbstone.core.values import (
    NOBODY,
    UNNAMED,
    Answer,
    Counts,
    Holder,
    IdempotencyKey,
    Lease,
    May,
    Moved,
    Outcome,
    Peeked,
    Published,
    Stale,
    WasThere,
)
from curbstone.core.writing.cleaner import Cleaner
from curbstone.core.writing.writer import Writer

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.options import QueueOptions
    from curbstone.core.writing.batch import Batch

ATOMIC_SHARE = 2

logger = logging.getLogger("curbstone.core")


class Queue(AloneQueue):
    """See `core.broker` for where it comes from."""

    def __init__(self, broker: Broker, meta: Meta, log: Log) -> None:
        self.broker = broker
        self.host = QueueHost(broker.host, self)
        self.sync = broker.sync
        self.syncs_always = broker.sync.kind == "always"
        self.meta = meta
        self.options: QueueOptions = meta.options
        """The options in force: those of `meta`, with the server's defaults put in."""
        self._meta_bytes = len(meta.encode())
        self.name = meta.name
        self.uid = meta.uid
        self.label = f"private queue {meta.uid}" if meta.name.is_private else f"queue {meta.name}"
        """What it is called where anybody may read it: the name of a private queue is a secret."""
        self.log = log
        self.next_seq = 1
        self.stats = Stats()
        self.damaged: list[str] = []
        self.is_closed = False
        self.broken = ""
        """Why it is closed until the next start, see `core.breakdown`."""
        self.probe = False
        self.keys = Keys(self)
        self.staged = StagedMarks(log.room)
        self.pending = Pending(self)
        self.expiry = Expiry(self)
        self.deaths = Deaths(self)
        self.settling = Settling(self)
        self.leasing = Leasing(self)
        self.popping = Popping(self)
        self.timers = Timers(self)
        self.opening = Opening(self)
        self.cleaner = Cleaner(self)
        self.reading = ReadingGroups(self)
        self.writer = Writer(self)
        self.rings = Rings(self)
        self.disuse = Disuse(self)
        self._attached: dict[Consumer, None] = {}
        """All consumers that have not ended, those that paused included."""
        self._woken: dict[str, None] = {}
        self._watchers: list[Callable[[], None]] = []
        self._changed = True

    # --- names

    def message_id(self, seq: int) -> str:
        """Return the id of a message: the same on every delivery and every protocol."""
        return f"{self.uid}-{seq}"

    def parse_id(self, text: str) -> int | None:
        """Return the seq of a message id of this queue, or None."""
        uid, dash, seq = text.rpartition("-")
        return int(seq) if dash and uid == self.uid and seq.isascii() and seq.isdigit() and len(seq) < 20 else None

    # --- producers

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        atomic: bool = False,
        key: IdempotencyKey | None = None,
    ) -> None:
        """See `core.port.Queue.publish`; with a `key` they are stored once (see `core.notes.keys`)."""
        refusal = self.refusal()
        if refusal is not None or not messages:
            self.host.call_soon(lambda: on_done(refusal, 0, len(messages)))
        elif atomic or key is not None:
            self._publish_whole(messages, on_done, key)
        else:
            most = self.options.max_message_size
            if all([len(message.body) <= most for message in messages]):
                self.writer.publish(Publish(messages, on_done))
            else:
                self._publish_but_large(messages, on_done, most)

    def _publish_whole(self, messages: list[Message], on_done: Published, key: IdempotencyKey | None) -> None:
        """Publish all or nothing."""
        cap, most = self.options.cap, self.options.max_message_size
        states = RELEASE_BYTES * sum(map(self.pending.entitled_count, messages))
        size = sum(map(entry_bytes, messages)) + 8 * len(messages) + BATCH_BYTES + states
        too_large = next((message for message in messages if len(message.body) > most), None)
        error: CurbstoneError | None = None
        if too_large is not None:
            error = self.too_large(too_large)
        elif size > cap // ATOMIC_SHARE:
            error = MessageTooLarge(f"{size} bytes at once can never fit the queue's cap of {cap} bytes")
        if error is not None:
            self.host.call_soon(lambda: on_done(error, 0, len(messages)))
        elif key is not None:
            self.keys.publish(Publish(messages, on_done, size), key)
        else:
            self.writer.publish(Publish(messages, on_done, size))

    def _publish_but_large(self, messages: list[Message], on_done: Published, most: int) -> None:
        """Publish all but those that are too large, each answered in its turn."""
        good: list[Message] = []
        for message in messages:
            if len(message.body) <= most:
                good.append(message)
                continue
            if good:
                self.writer.publish(Publish(good, on_done))
                good = []
            refused = Publish([message], on_done)
            refused.refusal = self.too_large(message)
            self.writer.publish(refused)
        if good:
            self.writer.publish(Publish(good, on_done))

    def too_large(self, message: Message) -> MessageTooLarge:
        """Return what to say of a message that is."""
        most = self.options.max_message_size
        return MessageTooLarge(f"the message has {len(message.body)} bytes, the queue's max_message_size is {most}")

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published now, or None."""
        if self.broker.is_stopping:
            return Unavailable("the server is shutting down")
        if self.is_closed and not self.broken:
            return NoSuchQueue(f"no such queue: {self.name}")
        return Unavailable(self.writer.failure) if self.writer.failure else None

    # --- consumers

    def subscribe(
        self,
        deliver: Callable[[list[Delivery]], None],
        *,
        window: int,
        weight: int = 1,
        group: str = UNNAMED,
        auto: bool = False,
        on_closed: Callable[[CurbstoneError], None],
    ) -> Consumer:
        """Return a consumer that `deliver` is called for; see `Consumer`."""
        consumer = Consumer(self, deliver, window=window, weight=weight, group=group, auto=auto, on_closed=on_closed)
        refusal = Unavailable(self.broken) if self.broken else self.pending.undeclared.refusal([group])
        if refusal is not None:
            consumer.closed = True
            self.host.call_soon(partial(on_closed, refusal))
            return consumer
        self._attached[consumer] = None
        self.join(group, consumer)
        return consumer

    def pop(
        self,
        on_done: Popped,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Waiter:
        """See `core.port.Queue.pop`."""
        return Pop(self, group, wait_ms, on_done, is_wanted).begin()

    def join(self, name: str, taker: Taker) -> None:
        """Let a consumer or waiter take part in the round robin of a group."""
        self.rings.join(name, taker)
        self.wake(name)
        self.changed()

    def leave(self, taker: Consumer | Waiter) -> None:
        """Take a consumer or waiter out of the round robin."""
        self.rings.leave(taker.group, taker)
        self.changed()

    def detach(self, consumer: Consumer) -> None:
        """Forget a consumer that has ended."""
        self.leave(consumer)
        self._attached.pop(consumer, None)

    # --- leases, and settling without a consumer

    def lease(
        self,
        count: int,
        duration_ms: int,
        on_done: Answer,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        owner: str = NOBODY,
    ) -> Waiter:
        """Take up to `count` messages, or LEASE_BYTES_MAX, each for `duration_ms`; an empty list for none."""
        return self.leasing.lease(count, duration_ms, on_done, group=group, wait_ms=wait_ms, owner=owner)

    def settle_leases(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        *,
        delay_ms: int | None = None,
        error: str = "",
        owner: str = NOBODY,
    ) -> None:
        """Settle leases; `on_done(error, settled, stale tokens)` comes after the commit."""
        self.leasing.settle(tokens, outcome, on_done, delay_ms=delay_ms, error=error, owner=owner)

    def extend(self, tokens: list[str], duration_ms: int, on_done: Stale, owner: str = NOBODY) -> None:
        """Let leases end `duration_ms` from now; tells the stale ones."""
        self.host.call_soon(partial(on_done, None, self.leasing.extend(tokens, duration_ms, owner)))

    def give_back(self, leases: list[Lease]) -> None:
        """End leases that nobody has seen: no try is counted."""
        self.leasing.give_back([lease.token for lease in leases])

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        """Settle a message of the unnamed group in whatever state it is; tells whether it was there."""
        self.settling.settle_by_id(seq, on_done, owner)

    def end_delivery(self, group: str, seq: int) -> None:
        """Make the delivery of a message stale, whoever holds it."""
        self.leasing.end(group, seq)
        for consumer in self._attached:
            if consumer.group == group:
                consumer.unsettled.pop(seq, None)

    # --- looking

    def consumers(self, group: str | None = None) -> list[Consumer]:
        """Return the consumers of a group, or of all."""
        return self.rings.consumers(group)

    def holders(self) -> list[Holder]:
        """See `core.port.Queue.holders`."""
        return holders(self)

    @property
    def is_used(self) -> bool:
        """Whether anybody consumes from it, waits for a message, or holds one."""
        return bool(self._attached) or len(self.leasing) > 0 or any(not ring.is_empty for ring in self.rings.values())

    def counts(self, group: str = UNNAMED) -> Counts:
        """Return the numbers of a group; `consumers` are those of all groups."""
        counted = self.pending.groups.get(group) or Group(self, group)
        held, runs = self.log.bytes + self._meta_bytes if self.opening.is_open else 0, self.pending.runs
        return Counts(counted.rdy, len(counted.wip), counted.delayed, held, len(self.consumers()), runs.oldest_ms)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after turns in which the counts changed; returns what ends it."""
        self._watchers.append(fn)

        def unwatch() -> None:
            if fn in self._watchers:
                self._watchers.remove(fn)

        return unwatch

    def changed(self) -> None:
        """The counts may have changed."""
        if not self._changed and (self._watchers or self.options.unused is not None):
            self._changed = True
            self.dirty()

    # --- turns

    def dirty(self) -> None:
        """Have `turn` called at the end of this turn."""
        self.broker.dirty(self)

    def wake(self, group: str) -> None:
        """Have a group dispatched at the end of this turn."""
        self._woken[group] = None
        self.broker.dirty(self)

    def load(self, run: Run) -> None:
        """Read a run in the background, then go on."""
        self.pending.reader.load(run, self._loaded)

    def _loaded(self) -> None:
        for name in self.rings:
            self._woken[name] = None
        self.dirty()

    def turn(self) -> None:
        """Hand out, write, tell: everything a turn has gathered."""
        if self.is_closed or not self.opening.is_open:
            return
        woken, self._woken = self._woken, {}
        for name in woken:
            self._dispatch(name)
        self.writer.flush()
        if self._changed:
            self._changed = False
            self.disuse.look()
            for fn in list(self._watchers):
                tell(self, fn)
        self.timers.arm()

    def _dispatch(self, name: str) -> None:
        if (ring := self.rings.get(name)) is not None and ring.dispatch():
            self.wake(name)

    def dispatch_all(self) -> None:
        """Hand out in all groups: something was committed."""
        for name in list(self.rings):
            self._dispatch(name)

    @property
    def has_housekeeping(self) -> bool:
        """Whether there is something to write that nobody asked for."""
        return self.probe or self.pending.has_unlogged_marks or self.cleaner.is_active or self.cleaner.droppable() > 0

    @property
    def is_idle(self) -> bool:
        """Whether it is empty and has nothing to write."""
        return not len(self.pending.runs) and self.writer.is_idle

    @property
    def is_working(self) -> bool:
        """Whether a job is under way in its directory."""
        return self.writer.is_busy or self.opening.is_working

    # --- what a commit brings (the writer calls)

    def committed(self, batch: Batch, commit: Commit) -> None:
        """Take what is on disk now into the index."""
        if batch.messages:
            self.pending.add(batch, commit)
            self.reading.next = batch.messages[-1].seq + 1
        for taken in batch.taken:
            for settle in taken.publish.settles:
                self.stats.acked += len(settle.deliveries) * (settle.reason is Reason.ACK)
                self.pending.clear(settle.group, [delivery.message for delivery in settle.deliveries])
            for release in taken.publish.releases:
                self.settling.given_back(release)
        if batch.tx:
            self.log.tx = batch.tx
        records = [*batch.states, *batch.released, *batch.handed, *batch.given_back, *batch.delays]
        self.pending.stored(records, commit.segment)
        if batch.copies:
            self.cleaner.copied(commit.segment, batch.start, batch.end)
        for name, mark in batch.marks.items():
            group = self.pending.groups.get(name)
            if group is not None:
                group.marked(mark, commit.segment.number)
        if batch.losses:
            self.reading.losses.logged(batch.losses, commit.segment.number)
        if batch.acks:
            self.reading.acks.logged(batch.acks, commit.segment.number)
        if batch.key_notes:
            for _kind, payload in decode_notes(batch.key_notes, 0, len(batch.key_notes)):
                self.keys.recover(payload, commit.segment.number)
        if batch.staged_notes:
            for _kind, payload in decode_notes(batch.staged_notes, 0, len(batch.staged_notes)):
                self.staged.recover(payload, commit.segment.number)
        if batch.pops or self.popping.waiting:
            self.popping.written(batch.pops)
        self.cleaner.committed()
        self.timers.arm()
        self.changed()

    # --- looking, emptying

    def peek(
        self,
        limit: int,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
        *,
        after: int = 0,
        state: str = "",
        group: str | None = None,
    ) -> None:
        """Return up to `limit` messages behind seq `after` in order, of one group or all, without changing anything."""
        Peek(self, limit, after, state, group, on_done).go_on()

    def purge(self, on_done: Callable[[CurbstoneError | None, int], None]) -> None:
        """Remove what is rdy or delayed; `on_done(error, count)` comes when its bytes are gone from the disk."""
        purge(self, on_done)

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None) -> None:
        """See `core.port.Queue.redrive`; an error's `members` say how many have moved, and no others are gone."""
        Redrive(self, to, limit, on_done, may).begin()

    def put_back(self, group: str, deliveries: list[Delivery]) -> None:
        """Return deliveries that nobody has seen: no try is counted."""
        self.settling.put_back(group, deliveries)

    # --- what it is

    def change(self, meta: Meta) -> None:
        """Take over changed options, groups and bindings."""
        gone = set(self.meta.groups) - set(meta.groups)
        self.meta = meta
        self.options = meta.options
        self._meta_bytes = len(meta.encode())
        for name in gone:
            self.pending.drop_group(name)
        for name in meta.groups:
            self.pending.group(name)
        self._loaded()  # what was paused may go on
        self.changed()

    # --- trouble, and the end

    def report(self, text: str) -> None:
        """Log what went wrong."""
        logger.error("queue %s: %s", self.name, text, extra={"queue": self.label})

    def fail_to_open(self, error: CurbstoneError) -> None:
        """The queue could not be created: refuse what waited for it."""
        self.is_closed = True
        self.opening.failed(error)
        self._end(error)

    def close(self, error: CurbstoneError) -> None:
        """End it: consumers are told, waiting publishes refused; called with no commit under way or to come."""
        if not self.is_closed:
            self.is_closed = True
            self._end(error)

    def _end(self, error: CurbstoneError) -> None:
        self.broker.troubles.over(self.label)
        self.writer.refuse_all(error)
        consumers, self._attached = self._attached, {}
        self.rings.end()
        for consumer in consumers:
            consumer.forget()
            tell(self, consumer.on_closed, error)
        self.leasing.end_all()
        self.cleaner.end(error)
        self.pending.reader.close()
        for fn in list(self._watchers):
            tell(self, fn)
