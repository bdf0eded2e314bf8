"""Queues, events and transactions with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any

from curbstone_client.aio_messages import Batches, Confirm, Message, Messages
from curbstone_client.errors import ClientError, NoSuchQueue, Unknown
from curbstone_client.publishing import Stored
from curbstone_client.queues import BaseEvent, BaseQueue, BaseTransaction, Target

_Confirming = Awaitable[Confirm]
_Publishing = Coroutine[Any, Any, Stored]
_Answering = Coroutine[Any, Any, Message]
_Fields = Coroutine[Any, Any, dict[str, Any]]


class _Target(Target[_Confirming, _Publishing]):
    """A queue or an event."""

    async def _stored(self, sent: _Confirming, timeout: float | None) -> Stored:
        confirm = await sent
        if timeout is None:
            return await confirm
        try:
            async with asyncio.timeout(timeout):
                return await confirm
        except TimeoutError:
            raise Unknown(f"no confirm within {timeout:g} s; it may still arrive") from None


class Queue(_Target, BaseQueue[_Confirming, _Publishing, Messages, _Answering, _Fields]):
    """A queue, as one client uses it."""

    def batches(self, size: int, wait: float = 1.0, *, group: str | None = None) -> Batches:
        """Subscribe to the queue and return its messages in batches of at most `size`.

        A batch is smaller if `wait` seconds have passed since its first message.
        """
        return Batches(self.consume(2 * size, group=group), size, wait)

    async def last_seq(self) -> int | None:
        """Return the last `seq` of this client's producer that the queue has stored, or None if it has stored none."""
        try:
            found = await self.client.call("GET", self.client.producer_path(self.name))
        except NoSuchQueue:  # 404 says that either the queue or the producer is unknown
            return None
        return int(found["seq"])

    async def delete(self) -> None:
        """Delete the queue with all its messages."""
        await self._call("DELETE")


class Event(_Target, BaseEvent[_Confirming, _Publishing, Messages]):
    """An event, as one client uses it."""


class Transaction(BaseTransaction):
    """Publishes and acks messages atomically, at the end of the `with` block."""

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; all of it is on disk when this returns.

        If the block raised or the commit failed, nothing is committed and the messages are requeued.
        """
        if error is None:
            try:
                consumer = await self._client.connected_to_consume()
                await consumer.commit(self.sends, self._messages)
                return
            except ClientError as refused:
                self._give_back(refused)
                raise
        self._give_back(error)
