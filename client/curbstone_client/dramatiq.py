"""dramatiq on Curbstone: `dramatiq.set_broker(CurbstoneBroker("http://localhost:8080", project="shop"))`.

The server delays messages, so none waits in a worker's memory, and there are no `.DQ` queues. A message that fails
permanently goes to the queue's dead-letter queue; a queue without one gets `{queue}.XQ`. No connection is made before
the first message, because modules with actors are also imported where no server runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import dramatiq
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from curbstone_client import sync
from curbstone_client.errors import CantConnect, ClientError, NoSuchQueue, Stale

log = logging.getLogger("curbstone_client")

CONFIRM_S = 30.0


class CurbstoneBroker(Broker):
    """A broker that keeps each queue of dramatiq in a queue of Curbstone."""

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        confirm_timeout: float = CONFIRM_S,
        **settings: Any,
    ) -> None:
        """`settings` are those of `curbstone_client.sync.Client`.

        Sending waits at most `confirm_timeout` seconds until the message is on disk.
        """
        super().__init__(middleware)
        self.client = sync.Client(url, **settings)
        self.queues: dict[str, None] = {}
        self._confirm_timeout = confirm_timeout

    def close(self) -> None:
        """Wait for outstanding confirms and acks, and disconnect."""
        self.client.close()

    def declare_queue(self, queue_name: str) -> None:
        """Register the queue. The server creates it on first use."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Send a message; it is on disk when this returns. `delay` is in ms.

        The option `broker_priority` is its priority in the queue: 9 is first. The actor's `priority` is for messages
        that a worker has already received, and there the lowest is first.
        """
        if message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        self.emit_before("enqueue", message, delay)
        queue = self.client.queue(message.queue_name)
        priority = message.options.get("broker_priority")
        try:
            queue.publish(message.encode(), delay=(delay or 0) / 1000, priority=priority, timeout=self._confirm_timeout)
        except ClientError as error:
            raise ConnectionClosed(str(error)) from error
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 1000) -> Consumer:
        """Subscribe to the queue and return its consumer, which waits `timeout` ms for a message."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            queue = self.client.declare(queue_name)
            if not queue.info()["options"]["dead_letter"]:
                self.client.declare(queue_name, dead_letter=f"{queue_name}.XQ")
        except CantConnect as error:
            raise ConnectionClosed(str(error)) from error
        return _Consumer(queue.consume(prefetch), timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop the queue's messages that are not in flight."""
        self.client.queue(queue_name).purge()

    def flush_all(self) -> None:
        """Drop all messages of all queues that are not in flight."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until no message of the queue is ready, delivered or delayed. Meant for tests of applications.

        Raise QueueJoinTimeout if that takes longer than `timeout` ms. As with dramatiq's own brokers, None and 0 set
        no limit.
        """
        try:
            settled = self.client.settled(queue_name, timeout=timeout / 1000 if timeout else None)
        except NoSuchQueue:  # nothing was sent yet
            return
        if not settled:
            raise QueueJoinTimeout(queue_name)


class _Proxy(MessageProxy):
    """A message with its delivery."""

    def __init__(self, delivery: sync.Message) -> None:
        message: dramatiq.Message[Any] = dramatiq.Message.decode(delivery.body)
        super().__init__(message)
        self.delivery = delivery


class _Consumer(Consumer):
    def __init__(self, messages: sync.Messages, timeout_s: float) -> None:
        self._messages = messages
        self._timeout_s = timeout_s

    def __next__(self) -> _Proxy | None:
        delivery = self._messages.get(self._timeout_s)
        return None if delivery is None else _Proxy(delivery)

    def ack(self, message: MessageProxy) -> None:
        assert isinstance(message, _Proxy)
        try:
            message.delivery.ack()
        except Stale:
            log.info("the connection of %s was lost while it was worked on; it is delivered again", message)

    def nack(self, message: MessageProxy) -> None:
        assert isinstance(message, _Proxy)
        error = message._exception
        try:
            message.delivery.reject(f"{type(error).__name__}: {error}" if error is not None else "failed")
        except Stale:
            log.info("the connection of %s was lost while it was worked on; it is delivered again", message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        for message in messages:
            assert isinstance(message, _Proxy)
            if not message.delivery.is_stale:
                message.delivery.nack(0, "the worker was stopped")

    def close(self) -> None:
        self._messages.close()
