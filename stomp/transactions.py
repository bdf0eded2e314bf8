"""BEGIN, COMMIT and ABORT: frames that take effect together or not at all.

An open transaction collects its frames in a builder of the engine; to abort it, the builder is dropped. The frames are
checked when they are received, so COMMIT fails only because of later changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.traffic import Traffic
from curbstone.core.values import ignore
from curbstone.stomp import extensions, header_values, temp_queues
from curbstone.stomp.acks import Settler
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Kind
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.extensions import NotUnsettled
from curbstone.stomp.session_state import SessionState
from curbstone.stomp.subscription import Subscription
from curbstone.stomp.targets import Target

if TYPE_CHECKING:
    from curbstone.access.transactions import AccessTransaction


class _Open:
    """One open transaction."""

    __slots__ = (
        "acked", "builder", "bytes", "error", "frames", "published", "rejected", "replies", "returned",
        "settled", "touched",
    )  # fmt: skip

    def __init__(self, builder: AccessTransaction) -> None:
        self.builder = builder
        self.error: CurbstoneError | NotUnsettled | None = None
        """Why one of its frames was refused, kept until COMMIT reports it."""
        self.settled: set[tuple[int, int, int]] = set()
        """(subscription index, seq, tries) of the deliveries it settles. Tries distinguish a repeated delivery."""
        self.touched: dict[int, Subscription] = {}
        self.replies: list[tuple[QueueName, Message]] = []
        """Messages to other clients' temporary queues, sent after the rest is on disk, because they can't be undone."""
        self.frames = 0
        self.bytes = 0
        self.published = 0
        self.acked = 0
        self.returned = 0
        self.rejected = 0

    def count(self, traffic: Traffic) -> None:
        """Count the transaction's messages and settles, which are on disk now."""
        traffic.confirmed += self.published
        traffic.acked += self.acked
        traffic.returned += self.returned
        traffic.rejected += self.rejected


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, connection: SessionState, settler: Settler) -> None:
        self._connection = connection
        self._settler = settler
        self._open: dict[str, _Open] = {}
        self.bytes = 0
        """The bodies and headers of the messages in all of them."""

    def begin(self, head: Head) -> None:
        """Carry out a BEGIN."""
        name = header_values.required(head, "transaction")
        if name in self._open:
            raise ProtocolError("this transaction is already open", head.lines["transaction"])
        limit = self._connection.limits.transactions_max
        if len(self._open) >= limit:
            raise ProtocolError(f"a connection has at most {limit} open transactions", head.lines["transaction"])
        self._open[name] = _Open(self._connection.access.transaction())

    def send(self, head: Head, target: Target, message: Message) -> None:
        """Add a SEND to its transaction."""
        transaction = self._count(head, len(message.body) + len(message.headers))
        with self._refusals_of(transaction):
            self._send(transaction, target, message)

    def _send(self, transaction: _Open, target: Target, message: Message) -> None:
        destination = target.destination
        if destination.kind is Kind.TOPIC:
            transaction.builder.publish_event(destination.event, message)
        elif destination.kind is Kind.REPLY:
            transaction.replies.append((destination.queue, message))
        else:
            connection = self._connection
            name = destination.queue
            if destination.private:
                transaction.builder.publish_private(temp_queues.make(connection, name), message)
            else:
                transaction.builder.publish(name, message)
        transaction.published += 1

    def ack(self, head: Head) -> None:
        """Add an ACK to its transaction."""
        transaction = self._count(head, 0)
        with self._refusals_of(transaction):
            subscription, seqs = self._covered(head, transaction)
            transaction.builder.ack(subscription.consumer, seqs)
            transaction.acked += len(seqs)
            self._settle(transaction, subscription, seqs)

    def nack(self, head: Head) -> None:
        """Add a NACK to its transaction."""
        transaction = self._count(head, 0)
        with self._refusals_of(transaction):
            self._nack(transaction, head)

    def _nack(self, transaction: _Open, head: Head) -> None:
        subscription, seqs = self._covered(head, transaction)
        asked = self._settler.nack_of(head, subscription)
        if asked.reject:
            transaction.builder.reject(subscription.consumer, seqs, asked.error)
            transaction.rejected += len(seqs)
        else:
            transaction.builder.nack(subscription.consumer, seqs, asked.delay_ms, asked.error)
            transaction.returned += len(seqs)
        self._settle(transaction, subscription, seqs)

    def commit(self, head: Head, receipt: bytes | None) -> list[Subscription]:
        """Carry out a COMMIT, and send its RECEIPT when it is on disk. Return the subscriptions it settled for."""
        transaction = self._end(head)
        connection = self._connection
        if transaction.error is not None:
            connection.refuse(transaction.error, [receipt])
            return []

        def done(error: CurbstoneError | None) -> None:
            if error is None:
                transaction.count(connection.traffic)
                for name, message in transaction.replies:
                    connection.access.reply(name, [message], ignore)
            if error is not None:
                connection.refuse(error, [receipt])
            elif not connection.lost:
                connection.receipt(receipt)
            connection.confirmed(transaction.frames + 1, transaction.bytes)

        connection.traffic.published += transaction.published
        transaction.builder.commit(done)
        connection.started(transaction.frames + 1, transaction.bytes)
        return list(transaction.touched.values())

    def abort(self, head: Head) -> None:
        """Carry out an ABORT."""
        self._end(head)

    def close(self) -> None:
        """Abort all transactions."""
        self._open.clear()
        self.bytes = 0

    def _end(self, head: Head) -> _Open:
        transaction = self._get(head)
        del self._open[head.headers["transaction"]]
        self.bytes -= transaction.bytes
        return transaction

    def _get(self, head: Head) -> _Open:
        transaction = self._open.get(header_values.required(head, "transaction"))
        if transaction is None:
            raise ProtocolError("this transaction is not open", head.lines["transaction"])
        return transaction

    def _count(self, head: Head, size: int) -> _Open:
        transaction = self._get(head)
        limits = self._connection.limits
        transaction.frames += 1
        transaction.bytes += size
        self.bytes += size
        if sum(each.frames for each in self._open.values()) > limits.transaction_frames_max:
            raise ProtocolError(f"open transactions have at most {limits.transaction_frames_max} frames together")
        if self.bytes > limits.transaction_bytes_max:
            raise ProtocolError(f"open transactions have at most {limits.transaction_bytes_max} bytes together")
        return transaction

    @contextmanager
    def _refusals_of(self, transaction: _Open) -> Iterator[None]:
        """Keep a frame's refusal for COMMIT if the client supports refusals; else the refusal ends the connection."""
        try:
            yield
        except (CurbstoneError, NotUnsettled) as error:
            if extensions.REFUSALS not in self._connection.extensions:
                raise
            transaction.error = transaction.error or error

    def _covered(self, head: Head, transaction: _Open) -> tuple[Subscription, list[int]]:
        """Return the deliveries that an ACK or NACK settles, without those that the transaction already settles."""
        subscription, seq = self._settler.find_own(head)
        settled = transaction.settled
        if _delivery(subscription, seq) in settled:
            raise ProtocolError("the transaction already settles this delivery", f"{head.command} {head.headers}")
        covered = self._settler.covered(subscription, seq)
        return subscription, [each for each in covered if _delivery(subscription, each) not in settled]

    def _settle(self, transaction: _Open, subscription: Subscription, seqs: list[int]) -> None:
        transaction.settled.update(_delivery(subscription, seq) for seq in seqs)
        transaction.touched[subscription.index] = subscription


def _delivery(subscription: Subscription, seq: int) -> tuple[int, int, int]:
    return subscription.index, seq, subscription.consumer.unsettled[seq].tries
