"""One subscription: its deliveries become MESSAGE frames, its `ack` headers become deliveries again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from curbstone.core.message import Delivery
from curbstone.core.traffic import Handouts
from curbstone.stomp.codec import V12
from curbstone.stomp.destinations import Destination
from curbstone.stomp.frames import CHARSET_MARK, encode_block
from curbstone.stomp.session_state import SessionState

if TYPE_CHECKING:
    from curbstone.core.port import Consumer, Queue

AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
ACK_MODES = (AUTO, CLIENT, INDIVIDUAL)

KEUSS_NACK_DELAY_MS = 5_000


class Subscription:
    """A consumer of one queue on one connection.

    The `ack` header of a delivery is `<handle>.<seq>.<tries>`. The handle is the connection's and the index of the
    subscription in it, which is never used twice; so the value names one delivery, and no table is needed.
    """

    def __init__(
        self, connection: SessionState, index: int, key: str, mode: str, destination: Destination, lines: str
    ) -> None:
        self._connection = connection
        self.index = index
        self.handle = f"{connection.handle}-{index}"
        self.key = key
        """What UNSUBSCRIBE and the ACK of 1.1 call it."""
        self.mode = mode
        self.destination = destination
        self.nack_delay_ms = KEUSS_NACK_DELAY_MS if destination.keuss else None
        self.consumer: Consumer
        self.queue: Queue
        self._handouts: Handouts
        self.active = True
        """False after UNSUBSCRIBE, when only what is unsettled can still be settled."""
        # What the current read settles: seqs in order, receipts, and how far a cumulative ACK has walked.
        self.settling: dict[int, None] = {}
        self.receipts: list[bytes] = []
        self.walk: Iterator[int] | None = None
        self._start = f"MESSAGE\n{lines}message-id:"
        self._second = -1
        self._second_text = ""

    def bind(self, queue: Queue, consumer: Consumer) -> None:
        """Tie it to its queue; once, before any delivery."""
        self.queue = queue
        self.consumer = consumer
        self._handouts = Handouts(self._connection.traffic, queue)
        self._start += f"{queue.uid}-"

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Write the MESSAGE frames of these deliveries."""
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
            if second != self._second:
                self._second = second
                self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            ack = f"{index}{seq}.{tries}" if index else ""
            head = (
                f"{start}{seq}{ack}\ncontent-length:{len(body)}\ntimestamp:{message.timestamp_ms}\n"
                f"redelivered:{'true' if tries else 'false'}\nx-tries:{tries}\nx-mature:{self._second_text}.{ms:03d}Z\n"
            )
            if version != V12 or CHARSET_MARK in block:
                block = encode_block(block, version)
            parts += (head.encode(), block, b"\n", body, b"\0\n")
        connection.write(b"".join(parts))

    def token(self, seq: int) -> bytes:
        """Return the `ack` header of an unsettled delivery."""
        return f"{self.handle}.{seq}.{self.consumer.unsettled[seq].tries}".encode()

    @property
    def drained(self) -> bool:
        """Whether it is unsubscribed and nothing of it can be settled any more."""
        return not self.active and not self.consumer.unsettled
