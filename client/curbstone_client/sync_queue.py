"""Queues, events and transactions with threads."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from curbstone_client.errors import ClientError, NoSuchQueue
from curbstone_client.publishing import Stored
from curbstone_client.queues import BaseEvent, BaseQueue, BaseTransaction, Target
from curbstone_client.sync_messages import Batches, Confirm, Message, Messages


class _Target(Target[Confirm, Stored]):
    """A queue or an event."""

    def _stored(self, sent: Confirm, timeout: float | None) -> Stored:
        return sent.result(timeout)


class Queue(_Target, BaseQueue[Confirm, Stored, Messages, Message, dict[str, Any]]):
    """A queue, as one client uses it."""

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Subscribe and return batches of at most `size` messages. A batch ends `wait` seconds after its first one."""
        return Batches(self.consume(2 * size, group=group), size, wait)

    def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that the queue has stored, or None if it has stored none."""
        try:
            found = self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # 404 says that either the queue or the producer is unknown
            return None
        return int(found["seq"])

    def delete(self) -> None:
        """Delete the queue with all its messages."""
        self._call("DELETE")


class Event(_Target, BaseEvent[Confirm, Stored, Messages]):
    """An event, as one client uses it."""


class Transaction(BaseTransaction):
    """Publishes and acks messages atomically, at the end of the `with` block."""

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; all is on disk when this returns. If the block raised, commit nothing and requeue the messages."""
        if error is None:
            try:
                self._client.commit(self.sends, self._messages)
                return
            except ClientError as refused:
                self._give_back(refused)
                raise
        self._give_back(error)
