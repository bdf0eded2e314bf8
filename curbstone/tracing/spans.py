"""The spans of publishes and deliveries: when they begin and end, and how they are related.

The trace of a message is in its header `traceparent` (W3C Trace Context). A message that has a `traceparent`
keeps it. A message without one gets that of the span of its publish, if that span is sampled. The span of a delivery
belongs to the trace that the message names, and has a link to the same place. Only messages with a trace have such
spans: a delivery never begins a trace.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import default_getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from curbstone.core import headers
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery, Message
from curbstone.core.values import Published

TRACEPARENT = b"traceparent:"
TRACESTATE = b"tracestate:"

# W3C Trace Context section 3.3.1. A malformed list is ignored, because OpenTelemetry would write it to the log.
_MEMBER = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_STATE = re.compile(rf"{_MEMBER}(?:[ \t]*,[ \t]*{_MEMBER})*")
STATE_CHARS_MAX = 512

SYSTEM = {"messaging.system": "curbstone"}
_PROPAGATOR = TraceContextTextMapPropagator()
_NOTHING = Context()

Place = tuple[str, str]
"""The `traceparent` and `tracestate` of a message; two empty texts if it has none."""


class Settled(NamedTuple):
    """How a delivery ended, and the error if settling it failed."""

    outcome: str
    """ack, nack, reject, auto, returned (the consumer is gone), expired (the lease ran out), deleted."""
    error: CurbstoneError | None = None


def place_of(message: Message) -> Place:
    """Return the place in a trace of a message."""
    return _value(message.headers, TRACEPARENT), _value(message.headers, TRACESTATE)


def _value(block: bytes, name: bytes) -> str:
    start = 0 if block.startswith(name) else block.find(b"\n" + name) + 1
    if not start and not block.startswith(name):
        return ""
    line = block[start + len(name) : block.find(b"\n", start)]
    try:
        return headers.unescape(line.decode("utf-8", "replace"))
    except headers.HeaderError:
        return ""


def _context(place: Place) -> Context:
    traceparent, tracestate = place
    carrier = {"traceparent": traceparent}
    if len(tracestate) <= STATE_CHARS_MAX and _STATE.fullmatch(tracestate):
        carrier["tracestate"] = tracestate
    return _PROPAGATOR.extract(carrier, context=Context(), getter=default_getter)


def begin_publish(tracer: Tracer, name: str, destination: str, place: Place = ("", "")) -> Span:
    """Return the span of a publish that begins now."""
    attributes = SYSTEM | {"messaging.operation.type": "send", "messaging.operation.name": "publish"}
    if destination:
        attributes["messaging.destination.name"] = destination
    context = _context(place) if place[0] else _NOTHING
    return tracer.start_span(name, context=context, kind=SpanKind.SERVER, attributes=attributes)


def end_publish(span: Span, error: CurbstoneError | None, count: int) -> None:
    """End the span of a publish, whose messages are now on disk or refused."""
    span.set_attribute("messaging.batch.message_count", count)
    if error is not None:
        _fail(span, error)
    span.end()


class PublishSpans:
    """The spans of one publish: one for each place in a trace of its messages, and one for all without a place.

    A span ends when all of its messages are on disk or refused, so it includes the commit.
    """

    def __init__(self, tracer: Tracer, name: str, destination: str = "", messages: Sequence[Message] = ()) -> None:
        self._tracer = tracer
        self._name = name
        self._destination = destination
        self._parts: dict[Place, _Part] = {}
        self._unanswered: deque[_Part] = deque()
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Add a message. Call this before it is published, because it may get a `traceparent`."""
        place = place_of(message)
        part = self._parts.get(place)
        if part is None:
            part = _Part(begin_publish(self._tracer, self._name, self._destination, place))
            self._parts[place] = part
        part.count += 1
        part.left += 1
        self._unanswered.append(part)
        if not place[0]:
            context = part.span.get_span_context()
            if context.is_valid and context.trace_flags.sampled:
                line = f"traceparent:00-{context.trace_id:032x}-{context.span_id:016x}-01\n"
                message.headers += line.encode()

    def answered(self, error: CurbstoneError | None, count: int) -> None:
        """Note that the next `count` messages are on disk or refused."""
        for _ in range(count):
            part = self._unanswered.popleft()
            part.left -= 1
            part.error = part.error or error
            if not part.left:
                end_publish(part.span, part.error, part.count)

    def all_answered(self, error: CurbstoneError | None) -> None:
        """Note that all messages are on disk or refused."""
        self.answered(error, len(self._unanswered))

    def then(self, on_done: Published) -> Published:
        """Return a callback for the publish that ends the spans and then calls `on_done`."""

        def done(error: CurbstoneError | None, first: int, count: int) -> None:
            self.answered(error, count)
            on_done(error, first, count)

        return done


class _Part:
    """The messages of a publish that share a span."""

    __slots__ = ("count", "error", "left", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.count = 0
        self.left = 0
        self.error: CurbstoneError | None = None


class DeliverySpans:
    """The spans of the deliveries of one queue. Each lasts from handing a message out until it is settled."""

    def __init__(self, tracer: Tracer, destination: str) -> None:
        self._tracer = tracer
        self._destination = destination

    def begin(self, delivery: Delivery, message_id: str, group: str, start_ns: int | None = None) -> Span | None:
        """Return the span of a delivery that begins now, or at `start_ns`; None if its message is in no trace."""
        place = place_of(delivery.message)
        if not place[0]:
            return None
        context = _context(place)
        made_at = get_current_span(context).get_span_context()
        if not made_at.is_valid:
            return None
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": self._destination,
            "messaging.message.id": message_id,
            "messaging.message.body.size": len(delivery.message.body),
            "curbstone.tries": delivery.tries,
        }
        if group:
            attributes["messaging.consumer.group.name"] = group
        return self._tracer.start_span(
            f"deliver {self._destination}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(made_at)],
            start_time=start_ns,
        )


def end(span: Span, settled: Settled) -> None:
    """End the span of a delivery."""
    span.set_attribute("curbstone.outcome", settled.outcome)
    if settled.error is not None:
        _fail(span, settled.error)
    span.end()


def now_ns() -> int:
    """Return the current time in the unit of spans."""
    return time.time_ns()


def _fail(span: Span, error: CurbstoneError) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
