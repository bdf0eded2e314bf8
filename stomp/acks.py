"""ACK and NACK: finds the deliveries that they name, and settles those of one read together.

A delivery that this connection did not receive may be a lease, or belong to another connection (`access.ack_ids`).
"""

from __future__ import annotations

from dataclasses import dataclass

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.values import Outcome
from curbstone.stomp import frames, header_values
from curbstone.stomp.codec import V11, V12, Head
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.extensions import NotUnsettled
from curbstone.stomp.send import Publisher
from curbstone.stomp.session_state import SessionState
from curbstone.stomp.subscribe import Subscriptions
from curbstone.stomp.subscription import CLIENT, Subscription


@dataclass(frozen=True, slots=True)
class Nack:
    """A NACK's request: to requeue the message, maybe after a delay, or (`reject`) to dead-letter it."""

    delay_ms: int | None
    error: str
    reject: bool


class Settler:
    """Settles the deliveries that ACK and NACK frames name. `flush` hands the collected ACKs to the engine."""

    def __init__(self, connection: SessionState, subscriptions: Subscriptions, publisher: Publisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._subscriptions = subscriptions
        self.opened: list[Subscription] = []
        """Subscriptions that have collected ACKs."""

    def ack_by_id(self, ack_id: bytes, receipt: bytes | None) -> None:
        """Collect the ACK of the delivery with this `ack` header: the fast path, for the usual frame of STOMP 1.2."""
        named = self._subscriptions.named(ack_id)
        if named is None or named[1] in named[0].settling:
            self._settle_foreign(ack_id, receipt, Outcome.ACK)
            return
        subscription, seq = named
        if not subscription.settling:
            self._open(subscription)
        if subscription.mode == CLIENT:
            self._walk(subscription, seq)
        else:
            subscription.settling[seq] = None
        if receipt is not None:
            subscription.receipts.append(receipt)

    def ack(self, head: Head, receipt: bytes | None) -> None:
        """Collect an ACK frame of any version."""
        named = self.find(head)
        if isinstance(named, bytes):
            self._settle_foreign(named, receipt, Outcome.ACK)
        else:
            subscription, seq = named
            self.ack_by_id(subscription.token(seq), receipt)

    def nack(self, head: Head, receipt: bytes | None) -> None:
        """Carry out a NACK, after the ACKs that were collected before it."""
        try:
            self._nack(head, receipt)
        except CurbstoneError as error:
            if not self._connection.can_refuse([receipt]):
                raise
            self._connection.refuse(error, [receipt])

    def _nack(self, head: Head, receipt: bytes | None) -> None:
        named = self.find(head)
        if isinstance(named, bytes):
            asked = self.nack_of(head, None)
            outcome = Outcome.REJECT if asked.reject else Outcome.NACK
            self._settle_foreign(named, receipt, outcome, asked.delay_ms, asked.error)
            return
        subscription, seq = named
        asked = self.nack_of(head, subscription)
        seqs = self.covered(subscription, seq)
        done = _Settled(self._connection, 1, [receipt] if receipt is not None else [])
        if asked.reject:
            subscription.consumer.reject(seqs, asked.error, done)
            self._connection.traffic.rejected += len(seqs)
        else:
            subscription.consumer.nack(seqs, asked.delay_ms, asked.error, done)
            self._connection.traffic.returned += len(seqs)
        done.started()
        self._subscriptions.drop_drained(subscription)

    def flush(self) -> None:
        """Settle the collected ACKs; drop them if the connection is ending."""
        opened, self.opened = self.opened, []
        for subscription in opened:
            seqs = list(subscription.settling)
            receipts = subscription.receipts
            subscription.settling, subscription.receipts, subscription.walk = {}, [], None
            if self._connection.ending:
                continue
            done = _Settled(self._connection, len(seqs), receipts)
            try:
                subscription.consumer.ack(seqs, done)
            except CurbstoneError as error:
                self._connection.refuse(error, receipts)
                continue
            self._connection.traffic.acked += len(seqs)
            done.started()
            self._subscriptions.drop_drained(subscription)

    def find(self, head: Head) -> tuple[Subscription, int] | bytes:
        """Return the delivery that an ACK or NACK names, or the id if this connection has no such delivery.

        Raise ProtocolError.
        """
        version = self._connection.version
        if version == V12:
            ack_id = header_values.required(head, "id").encode()
            return self._subscriptions.named(ack_id) or ack_id
        message_id = header_values.required(head, "message-id")
        if version == V11:
            key = header_values.required(head, "subscription")
            subscription = self._subscriptions.active(key)
            if subscription is None:
                raise ProtocolError(f"no subscription [{key[:80]}] found", head.lines["subscription"])
            candidates = [subscription]
        else:
            key = head.headers.get("subscription", "")
            candidates = [s for s in self._subscriptions.by_handle.values() if not key or s.key == key]
        for subscription in candidates:
            seq = subscription.queue.parse_id(message_id)
            if seq is not None and seq in subscription.consumer.unsettled and seq not in subscription.settling:
                return subscription, seq
        return message_id.encode()

    def find_own(self, head: Head) -> tuple[Subscription, int]:
        """Like `find`, but raise NotUnsettled if this connection has no such delivery."""
        named = self.find(head)
        if not isinstance(named, bytes):
            return named
        if self._connection.access.holding(named.decode("utf-8", "replace")) is None:
            raise not_found(named)
        raise NotUnsettled("a transaction can settle only deliveries of its own connection", named)

    def covered(self, subscription: Subscription, seq: int) -> list[int]:
        """Return the seqs that settling `seq` settles: in client mode, also all that were delivered before it."""
        if subscription.mode != CLIENT:
            return [seq]
        seqs: list[int] = []
        for delivered in subscription.consumer.unsettled:
            seqs.append(delivered)
            if delivered == seq:
                break
        return seqs

    def nack_of(self, head: Head, subscription: Subscription | None) -> Nack:
        """Return the request of a NACK; raise ProtocolError."""
        delay = header_values.delay_ms(head, self._connection.wall_ms)
        if delay is None and subscription is not None:
            delay = subscription.nack_delay_ms
        requeue = header_values.flag(head, "requeue")
        return Nack(delay, head.headers.get("error", ""), requeue is False)

    def _settle_foreign(
        self,
        ack_id: bytes,
        receipt: bytes | None,
        outcome: Outcome,
        delay_ms: int | None = None,
        error: str = "",
    ) -> None:
        """Settle a lease or a delivery of another connection, after the earlier frames of this read."""
        if self._publisher.opened:
            self._publisher.flush()
        self.flush()
        connection = self._connection
        text = ack_id.decode("utf-8", "replace")
        try:
            queue = connection.access.holding(text)
            if queue is None:
                raise not_found(ack_id)
        except (CurbstoneError, NotUnsettled) as refusal:
            if not connection.can_refuse([receipt]):
                raise
            connection.refuse(refusal, [receipt])
            return
        done = _Settled(connection, 1, [receipt] if receipt is not None else [])

        def settled(failed: CurbstoneError | None, count: int, _stale: list[str]) -> None:
            if failed is None and not count:
                connection.refuse(not_found(ack_id), [receipt])
                done.finish()
                return
            if failed is None:
                connection.traffic.settle(outcome, count)
            done(failed)

        done.started()
        connection.access.settle_leases(queue, [text], outcome, settled, delay_ms=delay_ms, error=error)

    def _open(self, subscription: Subscription) -> None:
        # SENDs to this queue that precede the ACK in this read are published first.
        if self._publisher.opened and self._publisher.holds(subscription.queue.name):
            self._publisher.flush()
        self.opened.append(subscription)

    def holds(self, name: QueueName) -> bool:
        """Return whether ACKs for this queue are collected."""
        return any(subscription.queue.name == name for subscription in self.opened)

    def _walk(self, subscription: Subscription, seq: int) -> None:
        """Collect all deliveries up to `seq`, continuing where the last ACK of this read stopped."""
        settling = subscription.settling
        if subscription.walk is None:
            subscription.walk = iter(subscription.consumer.unsettled)
        for delivered in subscription.walk:
            settling[delivered] = None
            if delivered == seq:
                return


class _Settled:
    """Sends RECEIPTs after the commit. An instance is the engine's callback."""

    __slots__ = ("_bytes", "_connection", "_count", "_receipts")

    def __init__(self, connection: SessionState, count: int, receipts: list[bytes]) -> None:
        self._connection = connection
        self._count = count
        self._receipts = receipts
        self._bytes = sum([len(receipt) for receipt in receipts])

    def started(self) -> None:
        """Count the frames as handed to the engine."""
        self._connection.started(self._count, self._bytes)

    def __call__(self, error: CurbstoneError | None) -> None:
        connection = self._connection
        if error is not None:
            connection.refuse(error, self._receipts)
        elif self._receipts and not connection.lost:
            connection.write(frames.receipts(self._receipts))
        self.finish()

    def finish(self) -> None:
        """Count the frames as confirmed."""
        self._connection.confirmed(self._count, self._bytes)


def not_found(token: bytes) -> NotUnsettled:
    """Return the error for an id that names no unsettled delivery."""
    return NotUnsettled("no unsettled delivery has this id; it was settled, released or never delivered", token)
