"""An engine that wraps another one and makes spans of publishes and deliveries. It implements the same port.

All protocols use the port, so all are traced alike, and a server without traces runs none of this code. Methods that
are not defined here are delegated. The trace of a message is read from its headers, and added if it has none; messages
are not changed otherwise. Call everything on the host's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from opentelemetry.trace import Span, Tracer

from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.host import Host
from curbstone.core.message import Message
from curbstone.core.names import DEFAULT_PROJECT, QueueName
from curbstone.core.port import Broker, Consumer, Queue, Transaction
from curbstone.core.port_staging import Staging
from curbstone.core.values import Done, Published
from curbstone.tracing.queue import TracedConsumer, TracedQueue, published
from curbstone.tracing.spans import PublishSpans, Settled, begin_publish, end, end_publish

if TYPE_CHECKING:  # so that each method here is checked against the port's
    BrokerPort = Broker
    StagingPort = Staging
else:  # `__getattr__` passes on the methods that are not defined here; a base class must not have them
    BrokerPort = StagingPort = object


def traced(broker: Broker, host: Host, tracer: Tracer) -> Broker:
    """Return the engine with spans."""
    return TracedBroker(broker, host, tracer)  # type: ignore[abstract]  # the rest is passed on


class TracedBroker(BrokerPort):
    def __init__(self, broker: Broker, host: Host, tracer: Tracer) -> None:
        self._broker = broker
        self._host = host
        self._tracer = tracer
        self._queues: WeakValueDictionary[Queue, TracedQueue] = WeakValueDictionary()
        """The traced queues that are in use or have open leases."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def _traced(self, queue: Queue) -> Queue:
        """Return the traced queue of a queue.

        There is only one for each, because leases may be settled over a different connection.
        """
        found = self._queues.get(queue)
        if found is None:
            found = TracedQueue(queue, self._host, self._tracer)  # type: ignore[abstract]  # the rest is passed on
            self._queues[queue] = found
        return found

    def get(self, name: QueueName) -> Queue:
        return self._traced(self._broker.get(name))

    def ensure(self, name: QueueName) -> Queue:
        return self._traced(self._broker.ensure(name))

    def queues(self) -> Sequence[Queue]:
        return [self._traced(queue) for queue in self._broker.queues()]

    def private_queues(self) -> Sequence[Queue]:
        return [self._traced(queue) for queue in self._broker.private_queues()]

    def publish_event(
        self, event: str, messages: list[Message], on_done: Published, project: str = DEFAULT_PROJECT
    ) -> None:
        spans = PublishSpans(self._tracer, f"publish {project}/{event}", f"{project}/{event}", messages)
        with published(spans):
            self._broker.publish_event(event, messages, spans.then(on_done), project)

    def reply(self, name: QueueName, messages: list[Message], on_done: Published) -> bool:
        spans = PublishSpans(self._tracer, "publish reply", "", messages)
        with published(spans):
            is_there = self._broker.reply(name, messages, spans.then(on_done))
        if not is_there:
            spans.all_answered(NoSuchQueue("the connection that waited for it is closed"))
        return is_there

    def transaction(self) -> Transaction:
        return TracedTransaction(self._broker.transaction(), self._tracer)

    @property
    def staging(self) -> Staging:
        return TracedStaging(self._broker.staging, self._tracer)  # type: ignore[abstract]  # the rest is passed on


class TracedTransaction:
    """See `core.port.Transaction`. It has one publish span, however many queues it publishes to."""

    def __init__(self, transaction: Transaction, tracer: Tracer) -> None:
        self._transaction = transaction
        self._spans = PublishSpans(tracer, "publish transaction")
        self._settling: list[tuple[TracedConsumer, Sequence[int], str]] = []

    @property
    def queues_reached(self) -> int:
        return self._transaction.queues_reached

    def publish(self, queue: Queue, message: Message) -> None:
        assert isinstance(queue, TracedQueue)
        self._spans.add(message)
        self._transaction.publish(queue.inner, message)

    def publish_event(self, event: str, message: Message, project: str = DEFAULT_PROJECT) -> None:
        self._spans.add(message)
        self._transaction.publish_event(event, message, project)

    def ack(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        self._transaction.ack(self._settled(consumer, seqs, "ack"), seqs)

    def nack(self, consumer: Consumer, seqs: Sequence[int], delay_ms: int | None = None, error: str = "") -> None:
        self._transaction.nack(self._settled(consumer, seqs, "nack"), seqs, delay_ms, error)

    def reject(self, consumer: Consumer, seqs: Sequence[int], error: str = "") -> None:
        self._transaction.reject(self._settled(consumer, seqs, "reject"), seqs, error)

    def _settled(self, consumer: Consumer, seqs: Sequence[int], outcome: str) -> Consumer:
        """Record the deliveries that the commit settles; return the engine's own consumer."""
        assert isinstance(consumer, TracedConsumer)
        self._settling.append((consumer, seqs, outcome))
        return consumer.inner

    def commit(self, on_done: Done) -> None:
        deliveries: list[tuple[TracedConsumer, dict[int, Span], str]] = []

        def done(error: CurbstoneError | None) -> None:
            self._spans.all_answered(error)
            for consumer, spans, outcome in deliveries:
                if error is not None:
                    consumer.spans.put_back(spans)
                    continue
                for span in spans.values():
                    end(span, Settled(outcome))
            on_done(error)

        with published(self._spans):
            self._transaction.commit(done)
        deliveries += [(consumer, consumer.spans.take(seqs), outcome) for consumer, seqs, outcome in self._settling]


class TracedStaging(StagingPort):
    """See `core.port_staging.Staging`. A commit has one publish span; its messages, which may be many, are not read."""

    def __init__(self, staging: Staging, tracer: Tracer) -> None:
        self._staging = staging
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._staging, name)

    def __len__(self) -> int:
        return len(self._staging)

    def commit(
        self,
        project: str,
        identifier: str,
        parts: Sequence[str] | None,
        on_done: Callable[[CurbstoneError | None, bool, int], None],
        **more: Any,
    ) -> None:
        span = begin_publish(self._tracer, "publish staged transaction", project)

        def done(error: CurbstoneError | None, was_done: bool, count: int) -> None:
            end_publish(span, error, count)
            on_done(error, was_done, count)

        try:
            self._staging.commit(project, identifier, parts, done, **more)
        except CurbstoneError as error:
            end_publish(span, error, 0)
            raise
