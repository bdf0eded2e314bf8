"""A transaction of the engine, restricted to the rights of one identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.access.rights import Right
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.port import Queue, Transaction
from curbstone.core.values import Done

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker


class AccessTransaction:
    """A transaction that checks the right to send once more at the commit."""

    def __init__(self, access: AuthorizedBroker, transaction: Transaction) -> None:
        self._access = access
        self._transaction = transaction
        self._queues: set[QueueName] = set()
        self._events: set[tuple[str, str]] = set()
        self.ack = transaction.ack
        self.nack = transaction.nack
        self.reject = transaction.reject

    @property
    def queues_reached(self) -> int:
        return self._transaction.queues_reached

    def publish(self, name: QueueName, message: Message) -> None:
        self._access.check_batches(name, [message])
        self._transaction.publish(self._access.ensure(name, Right.SEND), message)
        self._queues.add(name)

    def publish_private(self, queue: Queue, message: Message) -> None:
        """Add a publish to a private queue of the connection."""
        assert queue.name.is_private
        self._transaction.publish(queue, message)

    def publish_event(self, event: str, message: Message, project: str = "") -> None:
        project = project or self._access.home
        self._access.check_topic(Right.SEND, event, project)
        self._events.add((event, project))
        self._transaction.publish_event(event, message, project)

    def commit(self, on_done: Done) -> None:
        """Commit; raise NotAllowed if a right was lost meanwhile."""
        for name in self._queues:
            self._access.check(Right.SEND, name)
        for event, project in self._events:
            self._access.check_topic(Right.SEND, event, project)
        self._transaction.commit(on_done)
