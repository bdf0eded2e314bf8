"""Several publishes and settles together: first all messages are published and confirmed, then deliveries are settled.

So nothing is lost, but a crash between the two, or a queue that refuses its message, leaves a part done, and what is
delivered again may be published twice. The local engine does all or nothing; who must have that asks for the
capability ATOMIC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core import port
from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery, Message
from curbstone.core.names import DEFAULT_PROJECT
from curbstone.core.values import Done
from curbstone.rabbit.consumer import Consumer

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine


class _Wish(NamedTuple):
    """Deliveries to be settled."""

    consumer: Consumer
    seqs: list[int]
    end: Callable[[Done], None]


class Transaction:
    """See `core.port.Transaction`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._publishes: dict[port.Queue | tuple[str, str], list[Message]] = {}
        """To a queue, or to an event of a project."""
        self._wishes: list[_Wish] = []
        self._asked: dict[Consumer, set[int]] = {}

    def publish(self, queue: port.Queue, message: Message) -> None:
        """Add a publish."""
        self._publishes.setdefault(queue, []).append(message)

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        """Add a publish to all queues bound to an event of a project."""
        self._publishes.setdefault((project, event), []).append(message)

    def ack(self, consumer: port.Consumer, seqs: Sequence[int]) -> None:
        """Add an ack; raise StaleDelivery."""
        mine = self._ask(consumer, seqs)
        self._wishes.append(_Wish(mine, list(seqs), lambda done: mine.ack(seqs, done)))

    def nack(self, consumer: port.Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        """Add a nack; raise StaleDelivery."""
        mine = self._ask(consumer, seqs)
        self._wishes.append(_Wish(mine, list(seqs), lambda done: mine.nack(seqs, delay_ms, error, done)))

    def reject(self, consumer: port.Consumer, seqs: Sequence[int], error: str = "") -> None:
        """Add a reject; raise StaleDelivery."""
        mine = self._ask(consumer, seqs)
        self._wishes.append(_Wish(mine, list(seqs), lambda done: mine.reject(seqs, error, done)))

    def _ask(self, consumer: port.Consumer, seqs: Sequence[int]) -> Consumer:
        assert isinstance(consumer, Consumer)
        asked = self._asked.setdefault(consumer, set())
        if any(seq not in consumer.unsettled or seq in asked for seq in seqs) or len(set(seqs)) < len(seqs):
            raise StaleDelivery("a message is not unsettled here, or named twice")
        asked.update(seqs)
        return consumer

    def commit(self, on_done: Done) -> None:
        """Publish all, then settle; an error says how many messages are stored all the same."""
        total = sum(map(len, self._publishes.values()))
        stored = answered = 0
        first: CurbstoneError | None = None
        if any(seq not in wish.consumer.unsettled for wish in self._wishes for seq in wish.seqs):
            stale = StaleDelivery("a message is not unsettled any more")
            self._engine.host.call_soon(partial(on_done, stale))
            return
        claimed = [(wish, self._claim(wish)) for wish in self._wishes]

        def published(error: CurbstoneError | None, _first_seq: int, count: int) -> None:
            nonlocal stored, answered, first
            answered += count
            stored += count if error is None else 0
            first = first or error
            if answered == total:
                self._published(_partly(first, stored, total), claimed, on_done)

        if not total:
            self._published(None, claimed, on_done)
        for target, messages in self._publishes.items():
            if isinstance(target, tuple):
                self._engine.publish_event(target[1], messages, published, target[0])
            else:
                target.publish(messages, published)

    @staticmethod
    def _claim(wish: _Wish) -> list[Delivery]:
        """Nobody else may settle these meanwhile."""
        return wish.consumer.claim(wish.seqs)

    def _published(
        self, error: CurbstoneError | None, claimed: list[tuple[_Wish, list[Delivery]]], on_done: Done
    ) -> None:
        for wish, deliveries in claimed:
            wish.consumer.unclaim(deliveries)
        alive = [wish for wish, _deliveries in claimed if not wish.consumer.closed]
        if error is None and len(alive) < len(claimed):
            error = StaleDelivery("a consumer has ended; its deliveries come again, what was to be sent is sent")
        if error is not None or not alive:
            self._engine.host.call_soon(partial(on_done, error))
            return
        left = len(alive)
        first: CurbstoneError | None = None

        def settled(failed: CurbstoneError | None) -> None:
            nonlocal left, first
            first = first or failed
            left -= 1
            if not left:
                on_done(first)

        for wish in alive:
            wish.end(settled)


def _partly(error: CurbstoneError | None, stored: int, total: int) -> CurbstoneError | None:
    """Return the error, with how many messages are stored all the same."""
    if error is None or not stored:
        return error
    told = type(error)(f"{error}; {stored} of {total} messages are stored: a cluster does not undo them")
    told.members = {**error.members, "stored": stored}
    return told
