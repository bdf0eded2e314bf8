"""A queue with spans, and its consumers; see `tracing.engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, Tracer

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.message import Delivery, Message
from curbstone.core.port import Consumer, Queue
from curbstone.core.port_reading import Waiter
from curbstone.core.values import (
    NOBODY,
    UNNAMED,
    Answer,
    Done,
    Lease,
    Outcome,
    Published,
    WasThere,
)
from curbstone.tracing.spans import DeliverySpans, PublishSpans, Settled, end, now_ns

SWEEP_MS = 1000
"""How often the traced leases are checked for those that have run out."""


@contextmanager
def published(spans: PublishSpans) -> Iterator[None]:
    """End the spans if the call in the block raises, that is, if it is refused at once."""
    try:
        yield
    except CurbstoneError as error:
        spans.all_answered(error)
        raise


if TYPE_CHECKING:  # so that each method here is checked against the port's
    QueuePort = Queue
    ConsumerPort = Consumer
else:  # `__getattr__` passes on the methods that are not defined here; a base class must not have them
    QueuePort = ConsumerPort = object


class TracedQueue(QueuePort):
    """See `core.port.Queue`. Arguments that tracing does not need are passed on as `more`."""

    def __init__(self, queue: Queue, host: Host, tracer: Tracer) -> None:
        self._name = str(queue.name)
        self._host = host
        self._tracer = tracer
        self._spans = DeliverySpans(tracer, self._name)
        self._leased: dict[str, tuple[Span, Lease]] = {}
        self.inner = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, messages: list[Message], on_done: Published, **more: Any) -> None:
        spans = PublishSpans(self._tracer, f"publish {self._name}", self._name, messages)
        with published(spans):
            self.inner.publish(messages, spans.then(on_done), **more)

    def begin(self, delivery: Delivery, group: str, start_ns: int | None = None) -> Span | None:
        """Return the span of a delivery that begins now, or at `start_ns`; None if its message is in no trace."""
        return self._spans.begin(delivery, self.inner.message_id(delivery.message.seq), group, start_ns)

    # --- consumers

    def subscribe(
        self,
        deliver: Callable[[list[Delivery]], None],
        *,
        group: str = UNNAMED,
        auto: bool = False,
        on_closed: Callable[[CurbstoneError], None],
        **more: Any,
    ) -> Consumer:
        spans = ConsumerSpans(self, group, auto)

        def closed(error: CurbstoneError) -> None:
            spans.end_all()
            on_closed(error)

        def delivered(deliveries: list[Delivery]) -> None:
            spans.begin(deliveries)
            deliver(deliveries)

        consumer = self.inner.subscribe(delivered, group=group, auto=auto, on_closed=closed, **more)
        return TracedConsumer(consumer, spans)  # type: ignore[abstract]  # the rest is passed on

    def pop(
        self,
        on_done: Callable[[Delivery | None | CurbstoneError], None],
        *,
        group: str = UNNAMED,
        is_wanted: Callable[[], bool] | None = None,
        **more: Any,
    ) -> Waiter:
        """See `Queue.pop`. The span of the delivery begins just before its settle is written."""
        began_ns: int | None = None

        def wanted() -> bool:
            nonlocal began_ns
            began_ns = now_ns()
            return is_wanted is None or is_wanted()

        def done(answer: Delivery | None | CurbstoneError) -> None:
            if isinstance(answer, Delivery) and (span := self.begin(answer, group, began_ns)) is not None:
                end(span, Settled("ack"))
            on_done(answer)

        return self.inner.pop(done, group=group, is_wanted=wanted, **more)

    # --- leases

    def lease(self, count: int, duration_ms: int, on_done: Answer, **more: Any) -> Waiter:
        def done(answer: list[Lease] | CurbstoneError) -> None:
            if not isinstance(answer, CurbstoneError):
                for lease in answer:
                    if (span := self.begin(lease.delivery, lease.group)) is not None:
                        self._note(span, lease)
            on_done(answer)

        return self.inner.lease(count, duration_ms, done, **more)

    def _note(self, span: Span, lease: Lease) -> None:
        if not self._leased:
            self._host.call_later(SWEEP_MS, self._sweep)
        self._leased[lease.token] = span, lease

    def _sweep(self) -> None:
        """End the spans of leases that have run out. The time is read from the lease, because it may be extended."""
        now_ms = self._host.now_ms()
        self._end([token for token, (_, lease) in self._leased.items() if lease.expires_ms <= now_ms], "expired")
        if self._leased:
            self._host.call_later(SWEEP_MS, self._sweep)

    def _end(self, tokens: Sequence[str], outcome: str) -> None:
        for token in tokens:
            if token in self._leased:
                end(self._leased.pop(token)[0], Settled(outcome))

    def settle_leases(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        **more: Any,
    ) -> None:
        def done(refusal: CurbstoneError | None, settled: int, stale: list[str]) -> None:
            if refusal is None:
                self._end([*{*tokens} - {*stale}], outcome.value)
            on_done(refusal, settled, stale)

        self.inner.settle_leases(tokens, outcome, done, **more)

    def give_back(self, leases: list[Lease]) -> None:
        self._end([lease.token for lease in leases], "returned")
        self.inner.give_back(leases)

    def settle_by_id(self, seq: int, on_done: WasThere, owner: str = NOBODY) -> None:
        def done(error: CurbstoneError | None, was_there: bool) -> None:
            if was_there:
                held = [(token, lease) for token, (_, lease) in self._leased.items() if lease.group == UNNAMED]
                self._end([token for token, lease in held if lease.delivery.message.seq == seq], "deleted")
            on_done(error, was_there)

        self.inner.settle_by_id(seq, done, owner)


class ConsumerSpans:
    """The spans of the deliveries that one consumer holds."""

    def __init__(self, queue: TracedQueue, group: str, auto: bool) -> None:
        self._queue = queue
        self._group = group
        self._auto = auto
        self._open: dict[int, Span] = {}
        self._is_closed = False

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        """Begin the spans of messages that are handed to the consumer."""
        for delivery in deliveries:
            span = self._queue.begin(delivery, self._group)
            if span is None:
                continue
            if self._auto:
                end(span, Settled("auto"))
            else:
                self._open[delivery.message.seq] = span

    def take(self, seqs: Sequence[int]) -> dict[int, Span]:
        """Take out and return the spans of deliveries that are being settled."""
        return {seq: self._open.pop(seq) for seq in seqs if seq in self._open}

    def put_back(self, spans: Mapping[int, Span]) -> None:
        """Take back the spans of deliveries whose settling failed. If the consumer is gone, end them."""
        self._open |= spans
        if self._is_closed:
            self.end_all()

    def end_all(self) -> None:
        """End all spans, because the consumer is gone and its deliveries go back to the queue."""
        self._is_closed = True
        for span in self._open.values():
            end(span, Settled("returned"))
        self._open.clear()


class TracedConsumer(ConsumerPort):
    def __init__(self, consumer: Consumer, spans: ConsumerSpans) -> None:
        self.inner = consumer
        self.spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        return self.inner.unsettled

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        self._settle("ack", seqs, on_done, lambda done: self.inner.ack(seqs, done))

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        self._settle("nack", seqs, on_done, lambda done: self.inner.nack(seqs, delay_ms, error, done))

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        self._settle("reject", seqs, on_done, lambda done: self.inner.reject(seqs, error, done))

    def _settle(self, outcome: str, seqs: Sequence[int], on_done: Done | None, call: Callable[[Done], None]) -> None:
        """Settle deliveries, and end their spans when the settle is on disk.

        A message that is delivered again meanwhile gets a new span.
        """
        spans: list[Span] = []

        def done(error: CurbstoneError | None) -> None:
            for span in spans:
                end(span, Settled(outcome, error))
            if on_done is not None:
                on_done(error)

        call(done)
        spans.extend(self.spans.take(seqs).values())

    def close(self) -> None:
        self.inner.close()
        self.spans.end_all()
