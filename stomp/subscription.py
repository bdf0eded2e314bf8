"""A subscription: a consumer, whose deliveries become MESSAGE frames, or a count of messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.traffic import DeliveryCounter
from curbstone.stomp.codec import V12
from curbstone.stomp.destinations import Destination
from curbstone.stomp.frames import CHARSET_MARK, encode_block
from curbstone.stomp.session_state import SessionState

if TYPE_CHECKING:
    from curbstone.core.port import Consumer, Queue

AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
ACK_MODES = (AUTO, CLIENT, INDIVIDUAL)

KEUSS_NACK_DELAY_MS = 5_000


@lru_cache(maxsize=64)
def text_of(second: int) -> str:
    """Return a second since the epoch in ISO 8601. Cached, because all subscriptions of a fan-out need the same one."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Subscription:
    """A consumer of one queue on one connection.

    The `ack` header of a delivery is `<handle>.<seq>.<tries>`. The handle combines the connection's handle and the
    subscription's index in it, which is never reused. So the header names one delivery without a table.
    """

    def __init__(
        self, connection: SessionState, index: int, key: str, mode: str, destination: Destination, lines: str
    ) -> None:
        self._connection = connection
        self.index = index
        self.handle = f"{connection.handle}-{index}"
        self.key = key
        """The id in its SUBSCRIBE, by which UNSUBSCRIBE, and ACK in 1.1, name it."""
        self.mode = mode
        self.destination = destination
        self.nack_delay_ms = KEUSS_NACK_DELAY_MS if destination.keuss else None
        self.consumer: Consumer
        self.queue: Queue
        self._handouts: DeliveryCounter
        self.active = True
        """False after UNSUBSCRIBE. Its unsettled deliveries can still be settled."""
        # Of the current read: the seqs that it settles, in order; its receipts; how far a cumulative ACK has walked.
        self.settling: dict[int, None] = {}
        self.receipts: list[bytes] = []
        self.walk: Iterator[int] | None = None
        self._start = f"MESSAGE\n{lines}message-id:"

    def bind(self, queue: Queue, consumer: Consumer) -> None:
        """Attach the subscription to its queue. Called once, before any delivery."""
        self.queue = queue
        self.consumer = consumer
        self._handouts = DeliveryCounter(self._connection.traffic, queue)
        self._start += f"{queue.uid}-"

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Write the MESSAGE frames of these deliveries. Called by the engine."""
        connection = self._connection
        if connection.ending or connection.lost:
            return
        self._handouts.count(deliveries, auto=self.mode == AUTO)
        parts: list[bytes] = []
        version = connection.version
        start = self._start
        index = "" if self.mode == AUTO else f"\nack:{self.handle}."
        for delivery in deliveries:
            message = delivery.message
            seq = message.seq
            tries = delivery.tries
            body = message.body
            block = message.headers
            second, ms = divmod(delivery.mature_ms, 1000)
            ack = f"{index}{seq}.{tries}" if index else ""
            head = (
                f"{start}{seq}{ack}\ncontent-length:{len(body)}\ntimestamp:{message.timestamp_ms}\n"
                f"redelivered:{'true' if tries else 'false'}\nx-tries:{tries}\nx-mature:{text_of(second)}.{ms:03d}Z\n"
            )
            if version != V12 or block.find(CHARSET_MARK) >= 0:
                block = encode_block(block, version)
            parts += (head.encode(), block, b"\n", body, b"\0\n")
        connection.write(b"".join(parts))

    def token(self, seq: int) -> bytes:
        """Return the `ack` header of an unsettled delivery."""
        return f"{self.handle}.{seq}.{self.consumer.unsettled[seq].tries}".encode()

    @property
    def drained(self) -> bool:
        """Whether it was unsubscribed and has no unsettled deliveries."""
        return not self.active and not self.consumer.unsettled


class CountSubscription:
    """`…/count`: sends the number of messages in a queue (ready, unsettled and delayed), now and after each change.

    These MESSAGEs are not stored and need no ACK. While the socket is full none is sent; afterwards the latest count.
    """

    def __init__(
        self, connection: SessionState, index: int, lines: str, queue: Queue, destination: Destination
    ) -> None:
        self._connection = connection
        self.destination = destination
        self._start = f"MESSAGE\n{lines}message-id:count-{index}-"
        self._sent = 0
        self._last = -1
        self._queue = queue
        self._unwatch = self._queue.watch(self.changed)
        if connection.access.shares_queues:  # then another server may have changed the counts
            queue.refresh(self._refreshed)
        else:
            self.changed()

    def _refreshed(self, _error: CurbstoneError | None) -> None:
        self.changed()

    def changed(self) -> None:
        """Send the count if it differs from the last one sent."""
        connection = self._connection
        if connection.is_paused or connection.ending:
            return
        counts = self._queue.counts()
        count = counts.rdy + counts.wip + counts.delayed
        if count == self._last:
            return
        self._last = count
        self._sent += 1
        body = str(count)
        connection.write(
            f"{self._start}{self._sent}\ncontent-type:text/plain\ncontent-length:{len(body)}\n\n{body}\0\n".encode()
        )

    def close(self) -> None:
        """Stop sending."""
        self._unwatch()
