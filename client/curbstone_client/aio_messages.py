"""Messages with asyncio, and how they are settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from curbstone_client.consuming import Consumer, Subscription
from curbstone_client.errors import Closed, Stale
from curbstone_client.message import BaseMessage
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import Confirm as BaseConfirm
from curbstone_client.publishing import Stored

_TURN_S_MAX = 0.05
"""How often a loop over messages that never waits yields to the event loop, so that acks and heart-beats are sent."""


def ended(outcome: Outcome) -> Generator[Any, None, None]:
    """Wait until the outcome has ended, well or not. This is the generator for `__await__`."""
    future = asyncio.get_running_loop().create_future()
    outcome.on_done(lambda: None if future.done() else future.set_result(None))
    yield from future


async def until_ended(outcome: Outcome) -> None:
    """Wait until the outcome has ended, well or not."""
    if not outcome.done:
        future = asyncio.get_running_loop().create_future()
        outcome.on_done(lambda: None if future.done() else future.set_result(None))
        await future


class Confirm(BaseConfirm):
    """The confirm of one message that was sent: `stored = await confirm` returns once the message is on disk."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Stored]:
        if not self.done:
            yield from ended(self)
        return self.stored()


class Ended(Outcome):
    """The confirm of an ack, nack or reject. `await` waits until it is on disk, and raises if it was refused."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done:
            yield from ended(self)
        self.check()


class Message(BaseMessage[Ended]):
    """A delivery of a message. `async with message` acks it at the end, and requeues it if the block raises."""

    __slots__ = ()

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)


class Messages:
    """The messages of a subscription. Several tasks may iterate over it. Leaving `async with` ends the subscription."""

    def __init__(self, consumer: Consumer[Ended], subscription: Subscription) -> None:
        self._consumer = consumer
        self.subscription = subscription
        """The subscription in the core."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._waited_at = self._loop.time()

    @property
    def prefetch(self) -> int:
        """How many deliveries may be unsettled at once. Set it to change it; NotSupported if the server can't."""
        return self.subscription.prefetch

    @prefetch.setter
    def prefetch(self, count: int) -> None:
        self._consumer.widen(self.subscription, count)

    async def established(self) -> None:
        """Wait until the server has the subscription. Later messages to an event are delivered."""
        await until_ended(self.subscription.established)
        self.subscription.established.check()

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        subscription = self.subscription
        now = self._loop.time()
        if now - self._waited_at > _TURN_S_MAX:
            self._waited_at = now
            await asyncio.sleep(0)
        while not subscription.inbox:
            if subscription.error is not None:
                if isinstance(subscription.error, Closed):
                    raise StopAsyncIteration
                raise subscription.error
            await self._wait()
        message: Message = subscription.inbox.popleft()
        return message

    async def aclose(self) -> None:
        """End the subscription. Messages that were not handed out return to the queue."""
        self._consumer.unsubscribe(self.subscription)

    async def __aenter__(self) -> Messages:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A loop that is left by `break` does not close the subscription, which would keep its messages from others.
        if self.subscription.error is None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._consumer.unsubscribe, self.subscription)

    async def _wait(self) -> None:
        future = self._loop.create_future()
        self._waiters.append(future)
        self.subscription.on_arrival = self._wake
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._wake()  # this waiter was woken for a message, so wake another one instead
            else:
                self._waiters.remove(future)
            raise
        finally:
            self._waited_at = self._loop.time()

    def _wake(self) -> None:
        wake = len(self._waiters) if self.subscription.error else len(self.subscription.inbox)
        while self._waiters and wake > 0:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                wake -= 1
        if self._waiters:
            self.subscription.on_arrival = self._wake


class Batches:
    """The messages of a subscription, gathered into batches."""

    def __init__(self, messages: Messages, size: int, wait: float) -> None:
        self._messages = messages
        self._size = size
        self._wait = wait

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        batch = [await anext(self._messages)]
        try:
            async with asyncio.timeout(self._wait):
                while len(batch) < self._size:
                    batch.append(await anext(self._messages))
        except (TimeoutError, StopAsyncIteration):
            pass
        return Batch(batch)

    async def aclose(self) -> None:
        """End the subscription."""
        await self._messages.aclose()


class Batch(Sequence[Message]):
    """Messages that are settled together. Leaving `with` acks all of them, or requeues them if the block raises."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    async def ack(self) -> None:
        """Ack all messages; the acks are on disk when this returns.

        If a delivery has ended already, the others are still acked, and Stale is raised at the end.
        """
        stale: Stale | None = None
        outcomes: set[Ended] = set()
        for message in self._messages:
            try:
                outcomes.add(message.ack())
            except Stale as error:
                stale = error
        for outcome in outcomes:
            await outcome
        if stale is not None:
            raise stale

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.ack()
            return
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)
