"""One MQKS consumer: encodes its deliveries as lines, and finds messages by the ids that their publishers chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.message import Delivery
from curbstone.core.names import QueueName
from curbstone.core.traffic import DeliveryCounter, Traffic
from curbstone.mqks import codec

if TYPE_CHECKING:
    from curbstone.core.port import Consumer, Queue
    from curbstone.mqks.session import Session

PRUNE_AT = 1000
"""How many ids of settled messages may be left over before they are removed."""


class QueueConsumer:
    """A consumer of one queue on one connection.

    Publishers may give many messages the same id. Settling an id settles the oldest of them that is unsettled here.
    """

    def __init__(
        self,
        consumer_id: bytes,
        queue_name: QueueName,
        options: str,
        manual_ack: bool,
        owner: Session,
        traffic: Traffic,
    ) -> None:
        self.id = consumer_id
        self.queue_name = queue_name
        self.options = options
        """Its options in the form of an --update."""
        self.manual_ack = manual_ack
        self.owner = owner
        self._traffic = traffic
        self.engine: Consumer
        self._queue: Queue
        self._handouts: DeliveryCounter
        self._event = queue_name.queue.encode()
        self._seqs: dict[bytes, list[int]] = {}

    def bind(self, queue: Queue, engine: Consumer) -> None:
        """Attach the consumer to its queue. Called once, before any delivery."""
        self._queue = queue
        self._handouts = DeliveryCounter(self._traffic, queue)
        self.engine = engine

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Write the lines of these deliveries."""
        self._handouts.count(deliveries, auto=not self.manual_ack)
        lines = []
        for delivery in deliveries:
            message = delivery.message
            msg_id, event = codec.names_in(message.headers)
            msg_id = msg_id or self._queue.message_id(message.seq).encode()
            if self.manual_ack:
                self._seqs.setdefault(msg_id, []).append(message.seq)
            lines.append(codec.delivery(self.id, msg_id, event or self._event, delivery.tries, message.body))
        self.owner.write(b"".join(lines))

    def take(self, msg_id: bytes) -> list[int]:
        """Return the seq to settle for a message id, [] if none is unsettled, and forget that seq."""
        unsettled = self.engine.unsettled
        seqs = self._seqs.get(msg_id, [])
        found: list[int] = []
        while seqs and not found:
            seq = seqs.pop(0)
            if seq in unsettled:  # otherwise it was settled by `take_all`
                found.append(seq)
        if not seqs:
            self._seqs.pop(msg_id, None)
        if len(self._seqs) > 2 * len(unsettled) + PRUNE_AT:
            self._prune()
        return found

    def take_all(self) -> list[int]:
        """Return the seqs of all unsettled deliveries, and forget their ids."""
        self._seqs.clear()
        return list(self.engine.unsettled)

    def _prune(self) -> None:
        unsettled = self.engine.unsettled
        left = {msg_id: [seq for seq in seqs if seq in unsettled] for msg_id, seqs in self._seqs.items()}
        self._seqs = {msg_id: seqs for msg_id, seqs in left.items() if seqs}
