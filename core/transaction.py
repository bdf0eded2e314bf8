"""Several publishes and settles as one: all or nothing, also over several queues and across a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.consumer import Consumer, Done
from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull, StaleDelivery, Unavailable
from curbstone.core.format import BATCH_BYTES, Reason, entry_bytes
from curbstone.core.journal import Part
from curbstone.core.message import Delivery, Message
from curbstone.core.pending import RELEASE_BYTES
from curbstone.core.publish import Publish, Settle

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.queue import Queue

Undo = Callable[[list[Delivery]], None]
SETTLE_BYTES = 96


class _Share:
    """What the transaction does to one queue."""

    def __init__(self, queue: Queue) -> None:
        self.messages: list[Message] = []
        self.settles: list[Settle] = []
        self._queue = queue

    @property
    def size(self) -> int:
        """The most bytes its batch takes, and later what is said of its messages' tries."""
        states = RELEASE_BYTES * sum(map(self._queue.pending.entitled_count, self.messages))
        return BATCH_BYTES + sum(map(entry_bytes, self.messages)) + 16 * len(self.messages) + states

    @property
    def settles_bytes(self) -> int:
        """The most bytes its settles take."""
        return SETTLE_BYTES * sum(len(settle.deliveries) for settle in self.settles)


class _Wish:
    """A settle that was asked for: it is claimed from its consumer at commit."""

    def __init__(self, consumer: Consumer, seqs: Sequence[int], kind: str, delay_ms: int | None, error: str) -> None:
        self.consumer = consumer
        self.seqs = list(seqs)
        self.kind = kind
        self.delay_ms = delay_ms
        self.error = error


class Transaction:
    """A builder: nothing happens before `commit`, and dropping it is the abort."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shares: dict[Queue, _Share] = {}
        self._wishes: list[_Wish] = []

    def publish(self, queue: Queue, message: Message) -> None:
        """Add a publish."""
        self._share(queue).messages.append(message)

    def ack(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """Add an ack; raise StaleDelivery if one is not unsettled now."""
        self._wish(consumer, seqs, "ack", None, "")

    def nack(self, consumer: Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        """Add a nack; it is carried out with the commit, and not undone by a crash."""
        self._wish(consumer, seqs, "nack", delay_ms, error)

    def reject(self, consumer: Consumer, seqs: Sequence[int], error: str = "") -> None:
        """Add a reject; it is carried out with the commit."""
        self._wish(consumer, seqs, "reject", None, error)

    def settle(self, queue: Queue, group: str, deliveries: list[Delivery], reason: Reason, undo: Undo) -> None:
        """Add the settling of deliveries the caller holds; `undo` takes them back if the transaction fails."""
        self._share(queue).settles.append(Settle(group, deliveries, reason, undo))

    def _wish(self, consumer: Consumer, seqs: Sequence[int], kind: str, delay_ms: int | None, error: str) -> None:
        asked = {seq for wish in self._wishes if wish.consumer is consumer for seq in wish.seqs}
        for seq in seqs:
            if seq not in consumer.unsettled or seq in asked:
                raise StaleDelivery(f"message {seq} is not unsettled here")
            asked.add(seq)
        self._wishes.append(_Wish(consumer, seqs, kind, delay_ms, error))

    def _share(self, queue: Queue) -> _Share:
        share = self._shares.get(queue)
        if share is None:
            share = self._shares[queue] = _Share(queue)
        return share

    # --- commit

    def commit(self, on_done: Done) -> None:
        """Do it all; `on_done(None)` when it is on disk, `on_done(error)` when nothing of it happened."""
        error = self._check() or self._claim()
        if error is not None:
            self._undo()
            self._broker.host.call_soon(lambda: on_done(error))
            return
        done = self._with_releases(on_done)
        shares = {queue: share for queue, share in self._shares.items() if share.messages or share.settles}
        if not shares:
            self._broker.host.call_soon(lambda: done(None))
        elif len(shares) == 1:
            ((queue, share),) = shares.items()
            publish = Publish(share.messages, lambda failed, _first, _count: done(failed), share.size)
            publish.settles = share.settles
            queue.writer.publish(publish)
        else:
            _Spread(self._broker, shares, done).begin()

    def _check(self) -> CurbstoneError | None:
        for queue, share in self._shares.items():
            refusal = queue.refusal()
            if refusal is not None:
                return refusal
            for message in share.messages:
                if len(message.body) > queue.options.max_message_size:
                    return queue.too_large(message)
            if share.size > queue.options.cap // 2:
                cap = queue.options.cap
                return MessageTooLarge(f"a transaction of {share.size} bytes can't fit the queue's cap of {cap} bytes")
        return None

    def _claim(self) -> CurbstoneError | None:
        """Take what is to be settled from its consumers, so that nobody else settles it meanwhile."""
        for wish in self._wishes:
            if wish.kind == "ack":
                try:
                    deliveries = wish.consumer.claim(wish.seqs)
                except StaleDelivery as error:
                    return error
                consumer = wish.consumer
                self.settle(consumer.queue, consumer.group, deliveries, Reason.ACK, consumer.unclaim)
            elif any(seq not in wish.consumer.unsettled for seq in wish.seqs):
                return StaleDelivery("a message is not unsettled here")
        for queue, share in self._shares.items():
            if share.settles_bytes > queue.log.slack_bytes:
                return QueueFull(f"the transaction settles more than queue {queue.name} has room to log at once")
        return None

    def _undo(self) -> None:
        for share in self._shares.values():
            for settle in share.settles:
                settle.undo(settle.deliveries)

    def _with_releases(self, on_done: Done) -> Done:
        """Nacks and rejects follow a commit that succeeded; losing one to a crash releases it all the same."""
        wishes = [wish for wish in self._wishes if wish.kind != "ack"]

        def done(error: CurbstoneError | None) -> None:
            if error is None:
                for wish in wishes:
                    seqs = [seq for seq in wish.seqs if seq in wish.consumer.unsettled]
                    if not seqs:
                        continue
                    if wish.kind == "nack":
                        wish.consumer.nack(seqs, wish.delay_ms, wish.error)
                    else:
                        wish.consumer.reject(seqs, wish.error)
            on_done(error)

        return done


class _Spread:
    """A transaction over several queues: room is reserved, the journal written, then each queue's part."""

    def __init__(self, broker: Broker, shares: dict[Queue, _Share], on_done: Done) -> None:
        self._broker = broker
        self._shares = shares
        self._on_done = on_done
        self._reserved: list[Queue] = []
        self._left = 0
        self._tx = 0

    def begin(self) -> None:
        """Reserve room in every queue, then write the journal."""
        for queue, share in self._shares.items():
            if not queue.opening.is_open:
                queue.opening.when_open(self.begin_again)
                return
            if share.messages and not queue.writer.reserve(share.size):
                self._no_room(queue, share)
                return
            if share.messages:
                self._reserved.append(queue)
        parts = [
            Part(
                int(queue.uid, 16),
                share.messages,
                [(s.group, s.reason, [d.message.seq for d in s.deliveries]) for s in share.settles],
            )
            for queue, share in self._shares.items()
        ]
        self._broker.journal.write(parts, self._journaled)

    def begin_again(self, error: CurbstoneError | None) -> None:
        """Something that was waited for has come: start over."""
        self._give_back()
        if error is None:
            self.begin()
        else:
            self._fail(error)

    def _no_room(self, queue: Queue, share: _Share) -> None:
        """Let the queue's cleaner work by way of a publish that must wait for the same room."""
        self._give_back()
        if not queue.cleaner.can_make_room(share.size):
            cap = queue.options.cap
            self._fail(QueueFull(f"queue {queue.name} is at its cap of {cap} bytes"))
            return
        queue.dirty()
        self._broker.host.call_later(1, self.begin)

    def _give_back(self) -> None:
        for queue in self._reserved:
            queue.writer.unreserve(self._shares[queue].size)
        self._reserved = []

    def _fail(self, error: CurbstoneError) -> None:
        for share in self._shares.values():
            for settle in share.settles:
                settle.undo(settle.deliveries)
        self._broker.host.call_soon(lambda: self._on_done(error))

    def _journaled(self, tx: int, error: BaseException | None) -> None:
        if error is not None:
            self._give_back()
            self._fail(Unavailable(f"the journal can't be written: {error}"))
            return
        self._tx = tx
        self._left = len(self._shares)
        for queue, share in self._shares.items():
            publish = Publish(share.messages, self._part_done, share.size)
            publish.settles = share.settles
            publish.tx = tx
            publish.reserved = share.size if share.messages else 0
            queue.writer.publish(publish)

    def _part_done(self, _error: CurbstoneError | None, _first: int, _count: int) -> None:
        self._broker.journal.part_done(self._tx)
        self._left -= 1
        if not self._left:
            self._on_done(None)
