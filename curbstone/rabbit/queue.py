"""A queue of a cluster, as one gateway sees it; see `core.port.Queue`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from curbstone.core.batches import OpenBatch
from curbstone.core.errors import CurbstoneError, NoSuchQueue, NotSupported, Unavailable
from curbstone.core.filters import Filter, fields_of
from curbstone.core.holders import holders
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.stats import Stats
from curbstone.core.values import (
    NOBODY,
    UNKNOWN,
    UNNAMED,
    Answer,
    ClientInfo,
    Counts,
    Done,
    EarlyAnswer,
    Holder,
    IdempotencyKey,
    KeyList,
    LastNumber,
    Lease,
    May,
    Moved,
    Numbered,
    Outcome,
    Peeked,
    Published,
    Space,
    Stale,
    Undoing,
    UndoRequest,
    WasThere,
)
from curbstone.rabbit.amqp.link import Link
from curbstone.rabbit.amqp.port import LOST, NOT_FOUND, AmqpError, Arrived
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.consuming import dead_letters, remote_leases
from curbstone.rabbit.consuming.consumer import Consumer, gone
from curbstone.rabbit.consuming.leasing import Leasing
from curbstone.rabbit.consuming.pull import Pull
from curbstone.rabbit.consuming.redrive import Redrive
from curbstone.rabbit.publishing.publish_checks import PublishChecks
from curbstone.rabbit.publishing.queue_publishing import QueuePublishing
from curbstone.rabbit.shared import unsupported
from curbstone.rabbit.shared.counting import Counting
from curbstone.rabbit.shared.declare import Declaration
from curbstone.rabbit.shared.registry import Definition
from curbstone.rabbit.shared.topology import takes
from curbstone.rabbit.shared.unsupported import NoReading

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine


class Queue:
    """The queue's object in one gateway."""

    def __init__(self, engine: Engine, definition: Definition) -> None:
        self.engine = engine
        self.definition = definition
        """The definition in the registry, with changes of this gateway that it has not read back yet."""
        self.checks = PublishChecks(definition.name, definition.options, engine.schemas)
        self.stats = Stats()
        self.damaged: list[str] = []
        self.is_closed = False
        self.consumers: dict[Consumer, None] = {}
        self.filters: dict[str, Filter] = {}
        """The filters of a private queue's bindings. They are applied here to messages that arrive."""
        self.reading = NoReading()
        self.link: Link = engine.link_for(definition.name)
        """The connection for consuming from the queue."""
        self.declaration = Declaration(self)
        self.publishing = QueuePublishing(self)
        self.leasing = Leasing(self)
        self.counting = Counting(self)
        self.changed = self.counting.changed
        self.changes_under_way = 0
        self._when_changed: list[Callable[[], None]] = []

    # --- the definition

    @property
    def name(self) -> QueueName:
        """The project and name of the queue."""
        return self.definition.name

    @property
    def uid(self) -> str:
        """The uid of the queue. A queue that is deleted and created again has another one."""
        return self.definition.uid

    @property
    def options(self) -> QueueOptions:
        """The options in force."""
        return self.definition.options

    def set_definition(self, definition: Definition) -> None:
        """Set this gateway's definition of the queue."""
        before = self.options
        self.definition = definition
        if self.options != before:
            self.checks = PublishChecks(self.name, self.options, self.engine.schemas)
        if self.options.paused != before.paused:
            for consumer in list(self.consumers):
                consumer.queue_paused()
            self.leasing.queue_paused()
            self.changed()

    def accepts(self, arrived: Arrived, message: Message) -> bool:
        """Return whether a message passes the filter of any binding that it matches."""
        if not self.filters or arrived.exchange != self.engine.names.events:
            return True
        project, _, event = arrived.key.partition(".")
        fields = fields_of(message.headers, message.timestamp_ms)
        for binding in sorted(self.definition.bindings):
            wanted = self.filters.get(binding)
            if takes(self.name, frozenset([binding]), event, project) and (not wanted or wanted.passes(fields)):
                return True
        return False

    @property
    def purged(self) -> int:
        """Delayed messages with a smaller number have been purged."""
        return self.definition.purged

    def message_id(self, seq: int) -> str:
        """Return the id of a message."""
        return f"{self.uid}-{seq}"

    def parse_id(self, text: str) -> int | None:
        """Return the seq of a message id of this queue, or None."""
        uid, dash, seq = text.rpartition("-")
        return int(seq) if dash and uid == self.uid and seq.isascii() and seq.isdigit() and len(seq) < 20 else None

    def when_open(self, on_open: Done) -> None:
        """Call now if the queue is known to exist, otherwise once it does, or with the error."""
        self.declaration.when_open(on_open)

    def when_changed(self, on_done: Callable[[], None]) -> None:
        """Call when all pending changes of the queue by this gateway are done; now if there are none."""
        if self.changes_under_way:
            self._when_changed.append(on_done)
        else:
            on_done()

    def change_ended(self) -> None:
        """Note that one change is done or has failed."""
        self.changes_under_way -= 1
        if not self.changes_under_way:
            waiting, self._when_changed = self._when_changed, []
            for on_done in waiting:
                on_done()

    # --- producers

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be published to the queue now, or None if it can."""
        if self.engine.is_stopping:
            return Unavailable("the server is shutting down")
        return gone(self.name) if self.is_closed else self.checks.refusal()

    def publish(
        self,
        messages: list[Message],
        on_done: Published,
        *,
        atomic: bool = False,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
        early: EarlyAnswer | None = None,
    ) -> None:
        if key is not None:
            raise NotSupported(unsupported.KEYS)
        if numbered is not None:
            raise NotSupported(unsupported.NUMBERS)
        unsupported.check_orders(messages)
        refusal = self.refusal()
        if refusal is not None or not messages:
            self.engine.host.call_soon(partial(on_done, refusal, 0, len(messages)))
            return
        self.publishing.publish(messages, on_done, atomic=atomic and len(messages) > 1)

    def last_number(self, producer: bytes) -> LastNumber | None:
        """Unsupported on a cluster."""
        raise NotSupported(unsupported.NUMBERS)

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
        """Return a new consumer, which passes its deliveries to `deliver`."""
        consumer = Consumer(
            self, deliver, client_info, window=window, weight=weight, group=group, auto=auto, on_closed=on_closed
        )
        self.consumers[consumer] = None
        self.declaration.with_groups({group} - {UNNAMED}, consumer.queue_opened)
        return consumer

    def pop(
        self,
        on_done: Callable[[Delivery | None | CurbstoneError], None],
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Pull:
        """Take one message and settle it."""
        return self.leasing.pop(on_done, group, wait_ms, is_wanted)

    def lease(
        self,
        count: int,
        duration_ms: int,
        on_done: Answer,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        owner: str = NOBODY,
        client_info: ClientInfo = UNKNOWN,
    ) -> Pull:
        """Take up to `count` messages, each for `duration_ms`."""
        return self.leasing.lease(count, duration_ms, on_done, group, wait_ms, owner, client_info)

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
        """Settle leases of any gateway."""
        if self.is_closed:
            self.engine.host.call_soon(partial(on_done, gone(self.name), 0, []))
            return
        remote_leases.settle(self, tokens, outcome, on_done, delay_ms, error, owner)

    def extend(self, tokens: list[str], duration_ms: int, on_done: Stale, owner: str = NOBODY) -> None:
        """Extend leases of any gateway to `duration_ms` from now; `on_done` gets the stale tokens."""
        remote_leases.extend(self, tokens, duration_ms, on_done, owner)

    def give_back(self, leases: list[Lease]) -> None:
        """End leases that no client has seen, without counting a try."""
        self.leasing.give_back(leases)

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        """Settle a message that is leased on some gateway. Otherwise drop it when its turn comes.

        Whether a message that is not leased exists is unknown. It is reported as existing, unless its number is
        impossible.
        """
        remote_leases.settle_seq(self, seq, on_done, owner)

    def end_delivery(
        self,
        settling: Settling,
        tag: int,
        group: str,
        delivery: Delivery,
        reason: str,
        delay_ms: int | None,
        error: str,
        on_done: Done,
    ) -> None:
        """Requeue a delivery, counting a try, or dead-letter it if it was rejected, expired or tried too often."""
        tries = delivery.tries + 1
        most = self.options.max_tries
        dead_letter = partial(dead_letters.move, self, settling, tag, delivery)
        if reason == dead_letters.REJECTED:
            self.stats.rejected += 1
            dead_letter(reason, tries, error, on_done)
            return
        self.stats.released += 1
        seq = delivery.message.seq
        wait_ms = self.options.nack_delay_ms(delivery.tries, seq) if delay_ms is None else delay_ms
        if most and tries >= most:
            dead_letter(dead_letters.MAX_TRIES, tries, error, on_done)
        elif 0 < delivery.message.expires_ms <= self.engine.host.wall_ms():
            self.stats.expired += 1
            dead_letter(dead_letters.EXPIRED, tries, "", on_done)
        elif wait_ms > 0:
            self._requeue_later(settling, tag, group, delivery, wait_ms, on_done)
        else:
            settling.give_back(tag)
            settling.fence(lambda lost: on_done(self.engine.lost(lost)))

    def _requeue_later(
        self, settling: Settling, tag: int, group: str, delivery: Delivery, delay_ms: int, on_done: Done
    ) -> None:
        def sent(failed: CurbstoneError | None) -> None:
            if failed is not None:
                settling.give_back(tag)
            else:
                settling.ack(tag)
            settling.fence(lambda lost: on_done(failed or self.engine.lost(lost)))

        self.publishing.send_later(delivery.message, group, delay_ms, delivery.tries + 1, sent)

    # --- counts, purge, redrive

    def counts(self, group: str = UNNAMED) -> Counts:
        """Return the counts of a group at the last query."""
        return self.counting.counts(group)

    def by_priority(self, group: str = UNNAMED) -> dict[int, int]:
        """Return nothing: a node does not count by priority."""
        return {}

    def batches(self) -> list[OpenBatch]:
        """Return nothing: a cluster has no batches."""
        return []

    def drop_batch(self, batch: str, on_done: WasThere) -> None:
        """Unsupported on a cluster."""
        unsupported.no_batches()

    def space(self) -> Space:
        """Return the space that the options allow; only the node knows how much is free."""
        return Space(0, self.options.max_message_size, 0)

    def holders(self, seq: int = 0) -> list[Holder]:
        """Return the consumers of this gateway, and for each group the leases of each of its clients together."""
        return holders(self.consumers, self.leasing.all(), self.leasing.calls(), seq)

    def refresh(self, on_done: Done) -> None:
        """Query the counts now."""
        self.counting.refresh(on_done)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` whenever a query finds other counts, and at the end of the queue."""
        return self.counting.watch(fn)

    def peek(
        self,
        limit: int,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
        *,
        after: int = 0,
        state: str = "",
        group: str | None = None,
    ) -> None:
        """Unsupported on a cluster."""
        raise NotSupported(unsupported.PEEKING)

    def keys(
        self,
        limit: int,
        on_done: Callable[[KeyList | CurbstoneError], None],
        *,
        by_in_flight: bool = False,
        group: str = UNNAMED,
    ) -> None:
        """Unsupported on a cluster."""
        raise NotSupported(unsupported.KEY_COUNTS)

    def purge(self, on_done: Callable[[CurbstoneError | None, int], None], *, keep: bool = False) -> None:
        """Remove ready messages now, and delayed ones when they are due. They can't be kept for an undo."""
        if keep:
            raise NotSupported(unsupported.UNDOING)
        entry = {"do": "purged", "uid": self.uid, "number": self.engine.ids.take(1)}

        def registered(error: CurbstoneError | None) -> None:
            if error is not None:
                on_done(error, 0)
            else:
                self.declaration.purge(purged)

        def purged(error: CurbstoneError | None, count: int) -> None:
            self.stats.purged += count
            self.changed()
            on_done(error, count)

        self.engine.propose(entry, registered)

    def undo(self, settlement: UndoRequest, on_done: Undoing) -> None:
        """Unsupported on a cluster."""
        raise NotSupported(unsupported.UNDOING)

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None, seq: int = 0) -> None:
        """Move up to `limit` dead letters; see `core.port.Queue.redrive`."""
        if seq:
            raise NotSupported(unsupported.REDRIVING_ONE)
        Redrive(self, to, limit, on_done, may).begin()

    # --- losses, and the end

    def left(self, consumer: Consumer) -> None:
        """Note that a consumer has ended."""
        self.consumers.pop(consumer, None)

    def channel_lost(self, error: AmqpError, fail: Callable[[CurbstoneError], None]) -> None:
        """Find out why a channel has ended, and call `fail` with the reason."""
        if error.code == NOT_FOUND or self.is_closed:
            self.check_after_loss(fail)
        elif error.code == LOST:
            fail(Unavailable(f"the connection to RabbitMQ was lost: {error}"))
        else:
            fail(Unavailable(f"RabbitMQ closed the channel: {error}"))

    def check_after_loss(self, fail: Callable[[CurbstoneError], None]) -> None:
        """Find out why the broker has ended a consumer: a delivery was held too long, or the queue is gone."""
        if self.is_closed:
            self.engine.host.call_soon(partial(fail, gone(self.name)))
            return

        def checked(error: CurbstoneError | None) -> None:
            if isinstance(error, NoSuchQueue):
                fail(error)
            else:
                fail(Unavailable("RabbitMQ ended the consumer; it may have held a message for too long"))

        self.declaration.check(checked)

    def close(self, error: CurbstoneError) -> None:
        """End the consumers and requeue leased messages: the queue is gone or the server is stopping."""
        if self.is_closed:
            return
        self.is_closed = True
        for consumer in list(self.consumers):
            consumer.end(error)
        self.leasing.close(error)
        self.declaration.close(error)
        self.counting.close()

    def __repr__(self) -> str:
        return f"Queue({self.name})"


def as_entry(queue: Queue, do: str, **more: Any) -> dict[str, Any]:
    """Return an entry of the registry about a queue."""
    return {"do": do, "uid": queue.uid, **more}
