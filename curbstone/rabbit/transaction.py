"""Transactions: the messages are published atomically, then the deliveries are settled.

The journal commits a transaction of several messages, so all of them are stored or none. The deliveries are settled
right after that. If the gateway dies in between, they are delivered again, and a client may publish their results
twice. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core import port
from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery, Message
from curbstone.core.names import DEFAULT_PROJECT
from curbstone.core.values import AllDone, Done
from curbstone.rabbit.consuming.consumer import Consumer
from curbstone.rabbit.publishing import atomic
from curbstone.rabbit.publishing.unit import Addressed
from curbstone.rabbit.queue import Queue
from curbstone.rabbit.shared.declare import Step, run_concurrently

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine


class _Settlement(NamedTuple):
    """Deliveries to settle. If a message is delivered again meanwhile, that is another delivery."""

    consumer: Consumer
    deliveries: list[Delivery]
    end: Callable[[Done], None]

    @property
    def seqs(self) -> list[int]:
        """The numbers of their messages."""
        return [delivery.message.seq for delivery in self.deliveries]


class Transaction:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._publishes: dict[Queue | tuple[str, str], list[Message]] = {}
        """The messages for each queue, or for each event of a project."""
        self._settlements: list[_Settlement] = []
        self._to_settle: dict[Consumer, set[Delivery]] = {}
        self.queues_reached = 0
        """See `core.port.Transaction.queues_reached`; as far as this gateway knows."""

    def publish(self, queue: port.Queue, message: Message) -> None:
        """Add a publish."""
        assert isinstance(queue, Queue)
        self._publishes.setdefault(queue, []).append(message)

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        """Add a publish to all queues bound to an event of a project."""
        self._publishes.setdefault((project, event), []).append(message)

    def ack(self, consumer: port.Consumer, seqs: Sequence[int]) -> None:
        """Add an ack. Raise StaleDelivery."""
        mine, deliveries = self._choose(consumer, seqs)
        self._settlements.append(_Settlement(mine, deliveries, lambda done: mine.ack(seqs, done)))

    def nack(self, consumer: port.Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        """Add a nack. Raise StaleDelivery."""
        mine, deliveries = self._choose(consumer, seqs)
        self._settlements.append(_Settlement(mine, deliveries, lambda done: mine.nack(seqs, delay_ms, error, done)))

    def reject(self, consumer: port.Consumer, seqs: Sequence[int], error: str = "") -> None:
        """Add a reject. Raise StaleDelivery."""
        mine, deliveries = self._choose(consumer, seqs)
        self._settlements.append(_Settlement(mine, deliveries, lambda done: mine.reject(seqs, error, done)))

    def _choose(self, consumer: port.Consumer, seqs: Sequence[int]) -> tuple[Consumer, list[Delivery]]:
        assert isinstance(consumer, Consumer)
        chosen = self._to_settle.setdefault(consumer, set())
        deliveries = [consumer.unsettled[seq] for seq in seqs if seq in consumer.unsettled]
        if len(set(deliveries) - chosen) < len(seqs):
            raise StaleDelivery("a message is not unsettled here, or named twice")
        chosen.update(deliveries)
        return consumer, deliveries

    def commit(self, on_done: Done) -> None:
        """Publish all messages or none, then settle the deliveries."""
        for settlement in self._settlements:
            for delivery in settlement.deliveries:
                seq = delivery.message.seq
                if settlement.consumer.unsettled.get(seq) is not delivery:
                    stale = StaleDelivery(f"message {seq} is not unsettled here any more")
                    self._engine.host.call_soon(partial(on_done, stale))
                    return
        claimed = [(settlement, self._claim(settlement)) for settlement in self._settlements]
        events = [target for target in self._publishes if isinstance(target, tuple)]
        self.queues_reached = sum([self._engine.bound_count(event, project) for project, event in events])
        total = sum(map(len, self._publishes.values()))
        if not total:
            self._published(None, claimed, on_done)
        elif total > 1:
            self._publish_atomically(claimed, on_done)
        for target, messages in self._publishes.items() if total == 1 else ():
            done = partial(self._published_one, claimed, on_done)
            if isinstance(target, tuple):
                self._engine.publish_event(target[1], messages, done, target[0])
            else:
                target.publish(messages, done)

    def _published_one(
        self,
        claimed: list[tuple[_Settlement, list[Delivery]]],
        on_done: Done,
        error: CurbstoneError | None,
        _first_seq: int,
        _count: int,
    ) -> None:
        self._published(error, claimed, on_done)

    # --- several messages

    def _publish_atomically(self, claimed: list[tuple[_Settlement, list[Delivery]]], on_done: Done) -> None:
        ended = AllDone(on_done, 2)

        def committed(error: CurbstoneError | None) -> None:
            self._published(error, claimed, on_done if error is not None else ended)

        def opened(error: CurbstoneError | None) -> None:
            try:
                if error is not None:
                    raise error
                messages = self._addressed()
            except CurbstoneError as refused:
                self._engine.host.call_soon(partial(committed, refused))
                return
            self._engine.journal.begin(messages, committed, partial(ended, None))

        steps: list[Step] = []
        for target, messages in self._publishes.items():
            if isinstance(target, Queue):
                groups = {group for message in messages for group in message.groups}
                steps.append(partial(target.declaration.with_groups, groups))
        run_concurrently(steps, opened)

    def _addressed(self) -> list[Addressed]:
        """Return all messages with their numbers and destinations. Raise the error of the first one that is refused."""
        now_ms = self._engine.host.wall_ms()
        found: list[Addressed] = []
        for target, messages in self._publishes.items():
            numbers = [self._engine.ids.take(1) for _ in messages]
            if isinstance(target, Queue):
                found += atomic.to_queue(target, messages, numbers, now_ms)
            else:
                found += atomic.to_event(*target, messages, numbers, now_ms)
        return found

    @staticmethod
    def _claim(settlement: _Settlement) -> list[Delivery]:
        """Claim the deliveries, so that nothing else settles them meanwhile."""
        return settlement.consumer.claim(settlement.seqs)

    def _published(
        self, error: CurbstoneError | None, claimed: list[tuple[_Settlement, list[Delivery]]], on_done: Done
    ) -> None:
        for settlement, deliveries in claimed:
            settlement.consumer.unclaim(deliveries)
        alive = [settlement for settlement, _deliveries in claimed if not settlement.consumer.closed]
        if error is None and len(alive) < len(claimed):
            error = StaleDelivery(
                "the messages of the transaction were published, but a consumer has ended, so its messages are requeued"
            )
        if error is not None or not alive:
            self._engine.host.call_soon(partial(on_done, error))
            return
        settled = AllDone(on_done, len(alive))
        for settlement in alive:
            settlement.end(settled)
