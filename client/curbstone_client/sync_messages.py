"""Messages with threads, and how they are settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from curbstone_client.consuming import Consumer, Subscription
from curbstone_client.errors import Closed, Stale, Unknown
from curbstone_client.message import BaseMessage
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import Confirm as BaseConfirm
from curbstone_client.publishing import Stored

if TYPE_CHECKING:
    from curbstone_client.sync import Client


def wait_for(outcome: Outcome, lock: threading.RLock, timeout: float | None) -> bool:
    """Wait until the outcome has ended, well or not. Return False if it had not after `timeout` seconds."""
    if outcome.done:
        return True
    with lock:
        if outcome.done:
            return True
        ended = threading.Lock()
        ended.acquire()
        outcome.on_done(ended.release)
    return ended.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class Confirm(BaseConfirm):
    """The confirm of one message that was sent. `result` returns once the message is on disk."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Stored:
        """Wait until the message is on disk.

        Raise Refused, or Unknown if there is no confirm within `timeout` seconds.
        """
        if not wait_for(self, self.series.owner.lock, timeout):
            raise Unknown(f"no confirm within {timeout:g} s; it may still arrive")
        return self.stored()


class Ended(Outcome):
    """The confirm of an ack, nack or reject. `result` waits until it is on disk."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Client) -> None:
        super().__init__()
        self._owner = owner

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is on disk. Raise the refusal, or Unknown if there is no reply within `timeout` seconds."""
        if not wait_for(self, self._owner.lock, timeout):
            raise Unknown(f"no answer within {timeout:g} s; it may still arrive")
        self.check()


class LockedConsumer(Consumer[Ended]):
    """A consumer that takes the client's lock in methods that messages and subscriptions call."""

    def widen(self, subscription: Subscription, prefetch: int) -> None:
        with self.owner.lock:
            super().widen(subscription, prefetch)

    def unsubscribe(self, subscription: Subscription) -> None:
        with self.owner.lock:
            super().unsubscribe(subscription)

    def ack(self, message: BaseMessage[Any]) -> Ended:
        with self.owner.lock:
            return super().ack(message)

    def nack(self, message: BaseMessage[Any], delay: float | None, error: str) -> Ended:
        with self.owner.lock:
            return super().nack(message, delay, error)

    def reject(self, message: BaseMessage[Any], error: str) -> Ended:
        with self.owner.lock:
            return super().reject(message, error)


class Message(BaseMessage[Ended]):
    """A delivery of a message. `with message` acks it at the end, and requeues it if the block raises."""

    __slots__ = ()

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.subscription.consumer.owner.lock:
            self._leave(error)


class Messages(Iterator[Message]):
    """The messages of a subscription. Several threads may iterate over it. Leaving `with` ends the subscription."""

    def __init__(self, consumer: Consumer[Ended], subscription: Subscription, lock: threading.RLock) -> None:
        self._consumer = consumer
        self._lock = lock
        self._arrived = threading.Condition(lock)
        self.subscription = subscription
        """The subscription in the core."""

    @property
    def prefetch(self) -> int:
        """How many deliveries may be unsettled at once. Set it to change it; NotSupported if the server can't."""
        return self.subscription.prefetch

    @prefetch.setter
    def prefetch(self, count: int) -> None:
        self._consumer.widen(self.subscription, count)

    def established(self, timeout: float | None = None) -> None:
        """Wait until the server has the subscription. Later messages to an event are delivered."""
        if not wait_for(self.subscription.established, self._lock, timeout):
            raise Unknown(f"not subscribed within {timeout:g} s")
        self.subscription.established.check()

    def __next__(self) -> Message:
        message = self.get()
        assert message is not None
        return message

    def get(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if there is none within `timeout` seconds.

        Raise StopIteration if the subscription was closed, and a ClientError if it failed.
        """
        subscription = self.subscription
        try:
            message: Message = subscription.inbox.popleft()
            return message
        except IndexError:
            pass
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not subscription.inbox:
                if subscription.error is not None:
                    if isinstance(subscription.error, Closed):
                        raise StopIteration
                    raise subscription.error
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                subscription.on_arrival = self._arrived.notify_all
                self._arrived.wait(left)
            message = subscription.inbox.popleft()
            return message

    def close(self) -> None:
        """End the subscription. Messages that were not handed out return to the queue."""
        self._consumer.unsubscribe(self.subscription)

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop that is left by `break` does not close the subscription, which would keep its messages from others.
        if self.subscription.error is None:
            self.close()


class Batches(Iterator["Batch"]):
    """The messages of a subscription, gathered into batches."""

    def __init__(self, messages: Messages, size: int, wait: float) -> None:
        self._messages = messages
        self._size = size
        self._wait = wait

    def __next__(self) -> Batch:
        batch = [next(self._messages)]
        deadline = time.monotonic() + self._wait
        while len(batch) < self._size:
            try:
                message = self._messages.get(max(0.0, deadline - time.monotonic()))
            except StopIteration:
                break
            if message is None:
                break
            batch.append(message)
        return Batch(batch)

    def close(self) -> None:
        """End the subscription."""
        self._messages.close()


class Batch(Sequence[Message]):
    """Messages that are settled together. Leaving `with` acks all of them, or requeues them if the block raises."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def ack(self, timeout: float | None = None) -> None:
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
            outcome.result(timeout)
        if stale is not None:
            raise stale

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
            return
        for message in self._messages:
            if not message.is_stale:
                message.give_back(error)
