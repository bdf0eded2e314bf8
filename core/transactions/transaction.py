"""Several publishes and settles as one: all or nothing, even over several queues and across a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from curbstone.core import port
from curbstone.core.batches import NOT_TO_EVENTS
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.engine.delivery.dead_letters import count_dead, dead_letter, dead_letter_queue
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import SETTLE_BYTES, Release, Settle
from curbstone.core.errors import BadRequest, CurbstoneError, MessageTooLarge, QueueFull, StaleDelivery
from curbstone.core.events.events import EventKey, Filters, copies_of, copy_of
from curbstone.core.filters import COSTS_AT_ONCE, fields_of
from curbstone.core.host import Host
from curbstone.core.message import Delivery, Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName
from curbstone.core.transactions.two_phase import MultiQueueCommit, Participant
from curbstone.core.transactions.tx_log import JOURNAL_BYTES_MAX, TxLog
from curbstone.core.values import Done, Outcome

COPIES_MAX = 100_000
"""The most copies of messages to events in a transaction: they are made in one turn of the loop, and take memory."""

Undo = Callable[[list[Delivery]], None]


class Server(Protocol):
    """The part of the broker that a transaction needs."""

    host: Host
    tx_log: TxLog

    def ensure(self, name: QueueName) -> port.Queue:
        """Return a queue, creating it if necessary."""

    def leave_out(self, queue: Queue, error: CurbstoneError) -> bool:
        """Return whether the queue, which has refused a message with this error, simply does not get it."""

    def bound(self, event: str, project: str) -> Sequence[tuple[Queue, Filters]]:
        """Return the queues that are bound to an event now, each with its filters."""

    def behind_events(self, fn: Callable[[], object]) -> None:
        """Call `fn` when everything that was published to events so far is handed to the queues; at once if it is."""


class _SettleRequest(NamedTuple):
    """A settle of the transaction. The commit claims its deliveries from the consumer.

    It is for these very deliveries. If a message is requeued before the commit and delivered again, that is another
    delivery.
    """

    consumer: Consumer
    deliveries: list[Delivery]
    outcome: Outcome
    delay_ms: int | None
    error: str


class Transaction:
    """Collects publishes and settles. Nothing happens before `commit`. Implements `core.port.Transaction`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._participants: dict[Queue, Participant] = {}
        self._publishes: list[tuple[Queue | EventKey, Message]] = []
        """Each message with the queue or the event that it is published to."""
        self._requests: list[_SettleRequest] = []
        self._asked: dict[Consumer, set[Delivery]] = {}
        """By consumer, the deliveries that the requests settle."""
        self._dead: list[tuple[Queue, Reason, int]] = []
        self._copies = 0
        """How many copies its messages to events are."""
        self._costs = 0
        """What filters cost, in the units of `Filter.weight`."""
        self._reached: set[Queue] = set()
        """The queues that get messages for events."""

    def publish(self, queue: port.Queue, message: Message) -> None:
        self._publishes.append((_local(queue), message))

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        """Add a publish to every queue that is bound to `event` when the transaction is committed; raise BadRequest.

        If one of them refuses it, so is the transaction, unless `Participant.leave_out` lets it continue without it.
        """
        if message.orders is not None and message.orders.batched:
            raise BadRequest(NOT_TO_EVENTS)
        self._publishes.append(((project, event), message))

    @property
    def queues_reached(self) -> int:
        return len(self._reached)

    def ack(self, consumer: port.Consumer, seqs: Sequence[int]) -> None:
        self._request(consumer, seqs, Outcome.ACK)

    def nack(self, consumer: port.Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        self._request(consumer, seqs, Outcome.NACK, delay_ms, error)

    def reject(self, consumer: port.Consumer, seqs: Sequence[int], error: str = "") -> None:
        self._request(consumer, seqs, Outcome.REJECT, None, error)

    def settle(self, queue: Queue, group: str, deliveries: list[Delivery], reason: Reason, undo: Undo) -> None:
        """Add a settle of deliveries that the caller holds. If the transaction fails they are given to `undo`."""
        participant = self._participant(queue)
        participant.settles.append(Settle(group, deliveries, reason, undo))
        participant.is_only_bound = False

    def end_batch(self, queue: Queue, key: bytes) -> None:
        """Add the end of a batch of messages in a queue; see `core.batches`."""
        participant = self._participant(queue)
        participant.ended_batch = key
        participant.is_only_bound = False

    def _request(
        self,
        consumer: port.Consumer,
        seqs: Sequence[int],
        outcome: Outcome,
        delay_ms: int | None = None,
        error: str = "",
    ) -> None:
        assert isinstance(consumer, Consumer)
        asked = self._asked.setdefault(consumer, set())
        deliveries: list[Delivery] = []
        for seq in seqs:
            delivery = consumer.unsettled.get(seq)
            if delivery is None or delivery in asked:
                raise StaleDelivery(f"message {seq} is not unsettled here")
            deliveries.append(delivery)
        if len(set(seqs)) < len(seqs):
            raise StaleDelivery("a message is named twice")
        asked.update(deliveries)
        self._requests.append(_SettleRequest(consumer, deliveries, outcome, delay_ms, error))

    def _participant(self, queue: Queue) -> Participant:
        participant = self._participants.get(queue)
        if participant is None:
            participant = self._participants[queue] = Participant(queue, self._server.leave_out)
        return participant

    # --- commit

    def commit(self, on_done: Done) -> None:
        """Do everything or nothing: `on_done(None)` when all is on disk, `on_done(error)` if nothing has happened.

        Messages to events follow all earlier publishes to events, which may take several turns.
        """
        if all(isinstance(target, Queue) for target, _ in self._publishes):
            self._commit(on_done)
        else:
            self._server.behind_events(partial(self._commit, on_done))

    def _commit(self, on_done: Done) -> None:
        try:
            error = self._address() or self._claim() or self._check()
        except CurbstoneError as refusal:  # a dead-letter queue that can't be created
            error = refusal
        if error is not None:
            self.give_up(error, on_done)
            return
        done = self._counting(on_done)
        participants = {
            queue: each for queue, each in self._participants.items() if each.messages or each.ends or each.ended_batch
        }
        if not participants:
            self._server.host.call_soon(lambda: done(None))
        elif len(participants) == 1:
            ((queue, participant),) = participants.items()
            participant.on_done = partial(self._written, participant, done)
            queue.write_queue.publish(participant)
        else:
            MultiQueueCommit(self._server.host, self._server.tx_log, participants, done).begin()

    @staticmethod
    def _written(participant: Participant, done: Done, error: CurbstoneError | None, _first: int, _count: int) -> None:
        participant.detach()
        done(None if error is not None and participant.leave_out(error) else error)

    def _address(self) -> CurbstoneError | None:
        """Put each message into the participants of the queues that get it."""
        publishes, self._publishes = self._publishes, []
        for target, alike in groupby(publishes, lambda publish: publish[0]):
            messages = [message for _, message in alike]
            if isinstance(target, Queue):
                for message in messages:
                    self._add(target, message)
            elif (error := self._address_event(target, messages)) is not None:
                return error
        return None

    def _address_event(self, key: EventKey, messages: list[Message]) -> CurbstoneError | None:
        project, event = key
        targets = self._server.bound(event, project)
        self._copies += len(targets) * len(messages)
        if self._copies > COPIES_MAX:
            return BadRequest(
                f"{len(messages)} messages for the {len(targets)} queues bound to {event} are too many for one"
                f" transaction: it can have {COPIES_MAX} copies of messages to events; send them in several parts"
            )
        filtered = [target for target in targets if target[1]]
        for queue, filters in targets:
            if not filters:
                self._participant(queue).messages.extend(copies_of(messages))
                self._reached.add(queue)
        for message in messages if filtered else ():
            fields = fields_of(message.headers, self._server.host.wall_ms())
            for queue, filters in filtered:
                self._costs += sum([each.weight for each in filters])
                if self._costs > COSTS_AT_ONCE:
                    return BadRequest(
                        "these are too many messages at once for the filters of the queues bound to"
                        f" {event}; send them in several parts"
                    )
                if any([each.passes(fields) for each in filters]):
                    self._participant(queue).messages.append(copy_of(message))
                    self._reached.add(queue)
                else:
                    queue.stats.filtered += 1
        return None

    def _add(self, queue: Queue, message: Message) -> None:
        participant = self._participant(queue)
        participant.messages.append(message)
        participant.is_only_bound = False

    def _check(self) -> CurbstoneError | None:
        size = 0
        for queue, participant in list(self._participants.items()):
            size += participant.measure()
            error = self._refusal(queue, participant)
            if error is None:
                continue
            if not participant.leave_out(error):
                return error
            del self._participants[queue]
        if size > JOURNAL_BYTES_MAX and len(self._participants) > 1:  # before any of it is encoded
            most = JOURNAL_BYTES_MAX
            return MessageTooLarge(f"the transaction has {size} bytes in all its queues together, and can have {most}")
        return None

    @staticmethod
    def _refusal(queue: Queue, participant: Participant) -> CurbstoneError | None:
        refusal = queue.state.publish_refusal() if participant.messages else queue.refusal()
        if refusal is not None:
            return refusal
        for message in participant.messages:
            if (too_large := queue.state.too_large(message)) is not None:
                return too_large
        size, cap = participant.atomic_bytes, queue.options.cap
        if size > cap // 2:
            return MessageTooLarge(f"a transaction of {size} bytes can't fit the queue's cap of {cap} bytes")
        if SETTLE_BYTES * participant.ended > queue.log.room.slack_bytes:
            return QueueFull(f"the transaction settles more than queue {queue.name} has room to log at once")
        return None

    def _claim(self) -> CurbstoneError | None:
        """Take the deliveries from their consumers, so that they are not settled elsewhere meanwhile."""
        for request in self._requests:
            consumer, deliveries = request.consumer, request.deliveries
            for delivery in deliveries:
                if consumer.unsettled.get(delivery.message.seq) is not delivery:
                    return StaleDelivery(f"message {delivery.message.seq} is not unsettled here any more")
            consumer.claim([delivery.message.seq for delivery in deliveries])
            if request.outcome is Outcome.ACK:
                self.settle(_local(consumer.queue), consumer.group, deliveries, Reason.ACK, consumer.unclaim)
            elif request.outcome is Outcome.REJECT:
                self._dead_letter(consumer, deliveries, Reason.REJECT, request.error)
            else:
                self._give_back(request, deliveries)
        return None

    def _give_back(self, request: _SettleRequest, deliveries: list[Delivery]) -> None:
        consumer, queue = request.consumer, _local(request.consumer.queue)
        dead, alive = queue.requeue.divide(deliveries)
        self._dead_letter(consumer, dead, Reason.MAX_TRIES, request.error)
        now_ms = queue.host.now_ms()
        for delay_ms, some in queue.requeue.delayed(alive, request.delay_ms) if alive else ():
            due_ms = now_ms + delay_ms if delay_ms > 0 else 0
            participant = self._participant(queue)
            participant.releases.append(Release(consumer.group, some, due_ms, consumer.unclaim))
            participant.is_only_bound = False

    def _dead_letter(self, consumer: Consumer, deliveries: list[Delivery], reason: Reason, error: str) -> None:
        queue = _local(consumer.queue)
        if not deliveries:
            return
        self.settle(queue, consumer.group, deliveries, reason, consumer.unclaim)
        self._dead.append((queue, reason, len(deliveries)))
        name = dead_letter_queue(queue.state)
        if name is not None:
            target = _local(self._server.ensure(name))
            for delivery in deliveries:
                self._add(target, dead_letter(queue.state, delivery.message, reason, delivery.tries + 1, error))

    def give_up(self, error: CurbstoneError, on_done: Done) -> None:
        """Refuse the transaction before anything of it was written; deliveries that it would have ended stay."""
        for participant in self._participants.values():
            participant.abort()
        self._server.host.call_soon(lambda: on_done(error))

    def _counting(self, on_done: Done) -> Done:
        """Return a callback that counts the dead messages and then calls `on_done`."""

        def done(error: CurbstoneError | None) -> None:
            for queue, reason, count in self._dead if error is None else []:
                queue.stats.rejected += count * (reason is Reason.REJECT)
                count_dead(queue.state, reason, count)
            on_done(error)

        return done


class TransactionMover:
    """Moves messages of one queue, each time in a transaction. Implements `core.engine.delivery.dead_letters.Mover`."""

    __slots__ = ("_queue", "_server")

    def __init__(self, server: Server, queue: Queue) -> None:
        self._server = server
        self._queue = queue

    def move(
        self,
        group: str,
        deliveries: list[Delivery],
        reason: Reason,
        undo: Undo,
        messages: list[tuple[QueueName, Message]],
        on_done: Done,
    ) -> None:
        transaction = Transaction(self._server)
        transaction.settle(self._queue, group, deliveries, reason, undo)
        self._commit(transaction, messages, on_done)

    def end_batch(self, key: bytes, target: QueueName, report: Message, on_done: Done) -> None:
        transaction = Transaction(self._server)
        transaction.end_batch(self._queue, key)
        self._commit(transaction, [(target, report)], on_done)

    def _commit(self, transaction: Transaction, messages: list[tuple[QueueName, Message]], on_done: Done) -> None:
        try:
            for target, message in messages:
                transaction.publish(self._server.ensure(target), message)
        except CurbstoneError as error:
            transaction.give_up(error, on_done)
        else:
            transaction.commit(on_done)


def _local(queue: object) -> Queue:
    assert isinstance(queue, Queue), "the queue is one of another engine"
    return queue
