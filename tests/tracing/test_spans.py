"""The spans that an engine makes: what begins and ends them, and how they hang together. By the SDK's own exporter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.message import Message
from curbstone.core.port import Queue
from curbstone.core.values import Lease, Outcome
from curbstone.tracing.engine import traced
from tests.engines.worlds import TracedWorld

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACED = f"traceparent:00-{TRACE:032x}-{SPAN:016x}-01\n".encode()
UNSAMPLED = TRACED.replace(b"-01\n", b"-00\n")


@pytest.fixture
def world() -> Iterator[TracedWorld]:
    made = TracedWorld()
    yield made
    made.close()


def found(world: TracedWorld, name: str) -> list[ReadableSpan]:
    """Return the ended spans whose name begins so."""
    return [span for span in world.spans.get_finished_spans() if span.name.startswith(name)]


def outcomes(world: TracedWorld) -> list[object]:
    return [span.attributes["curbstone.outcome"] for span in found(world, "deliver") if span.attributes]


def leases(world: TracedWorld, queue: Queue, count: int, duration_ms: int = 60_000) -> list[Lease]:
    (taken,) = world.answer(lambda done: queue.lease(count, duration_ms, done))
    assert len(taken) == count
    return list(taken)


def test_a_delivery_is_linked_to_the_publish_of_its_message(world: TracedWorld) -> None:
    queue = world.queue()
    world.publish(queue, "a")
    (publish,) = found(world, "publish")
    assert publish.name == f"publish {queue.name}" and publish.parent is None and publish.kind is SpanKind.SERVER
    peer = world.peer(queue)
    peer.expect("a")
    assert not found(world, "deliver"), "it is not settled yet"
    peer.settle("ack", "a")
    (deliver,) = found(world, "deliver")
    context = publish.get_span_context()
    assert context is not None and deliver.parent is not None
    assert (deliver.parent.trace_id, deliver.parent.span_id) == (context.trace_id, context.span_id)
    assert [link.context.span_id for link in deliver.links] == [context.span_id]
    assert deliver.kind is SpanKind.CONSUMER and deliver.attributes is not None
    assert deliver.attributes["messaging.destination.name"] == str(queue.name)
    assert deliver.attributes["messaging.message.id"] == queue.message_id(peer.deliveries[0].message.seq)
    assert deliver.attributes["curbstone.outcome"] == "ack"


def test_producer_trace_continues_and_its_header_is_kept(world: TracedWorld) -> None:
    queue = world.queue()
    world.publish(queue, "a", headers=b"x:1\n" + TRACED + b"tracestate:v=1\n")
    delivery = world.pop(queue)
    assert delivery is not None and delivery.message.headers == b"x:1\n" + TRACED + b"tracestate:v=1\n"
    for span in (*found(world, "publish"), *found(world, "deliver")):
        assert span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (TRACE, SPAN)
        context = span.get_span_context()
        assert context is not None and context.trace_state.get("v") == "1"
    assert outcomes(world) == ["ack"]


@pytest.mark.parametrize(
    "state", [rb"a b\n2026-11-22 forged", b"v=" + b"1" * 600, b"V=1", b"v", b"v=1,,w=2", b"\xc3\xa9=1"]
)
def test_invalid_tracestate_is_dropped(world: TracedWorld, caplog: pytest.LogCaptureFixture, state: bytes) -> None:
    world.publish(world.queue(), "a", headers=TRACED + b"tracestate:" + state + b"\n")
    (span,) = found(world, "publish")
    context = span.get_span_context()
    assert span.parent is not None and context is not None and not context.trace_state
    assert not caplog.records


def test_publish_has_a_span_per_trace_that_ends_when_durable(world: TracedWorld) -> None:
    queue = world.queue()
    other = TRACED.replace(b"-b7ad", b"-c7ad")
    messages = [Message(b"x", block) for block in (TRACED, b"", other, TRACED, b"a:b\n")]
    left = len(messages)

    def done(error: CurbstoneError | None, _first: int, count: int) -> None:
        nonlocal left
        assert error is None
        left -= count

    queue.publish(messages, done)
    assert not found(world, "publish"), "nothing is on disk yet"
    world.wait_until(lambda: not left)
    counts = [span.attributes["messaging.batch.message_count"] for span in found(world, "publish") if span.attributes]
    assert sorted(map(str, counts)) == ["1", "2", "2"]


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_delivery_span_records_its_outcome(world: TracedWorld, how: str) -> None:
    queue = world.queue()
    peer = world.peer(queue, window=1)
    world.publish(queue, "a")
    peer.expect("a")
    peer.settle(how, "a")
    assert outcomes(world) == [how]
    if how == "nack":
        peer.expect("a", "a")
        peer.settle("ack", "a")
        tries = [span.attributes["curbstone.tries"] for span in found(world, "deliver") if span.attributes]
        assert outcomes(world) == ["nack", "ack"] and tries == [0, 1]


def test_closed_consumer_ends_spans_as_requeued_except_unsettled_ones(world: TracedWorld) -> None:
    queue = world.queue()
    peer = world.peer(queue)
    world.publish(queue, "a")
    peer.expect("a")
    with pytest.raises(StaleDelivery):
        peer.consumer.ack([*peer.seqs("a"), 999_999])
    assert not outcomes(world)
    peer.consumer.close()
    assert outcomes(world) == ["returned"]


def test_automatic_consumer_spans_end_immediately(world: TracedWorld) -> None:
    queue = world.queue()
    world.peer(queue, auto=True)
    world.publish(queue, "a", "b")
    world.wait_until(lambda: outcomes(world) == ["auto", "auto"])


def test_lease_spans_end_by_settle_expiry_or_requeue(world: TracedWorld) -> None:
    queue = world.queue()
    world.publish(queue, "a", "b", "c", "d")
    first, second = leases(world, queue, 2)
    (third,) = leases(world, queue, 1, duration_ms=5000)
    (fourth,) = leases(world, queue, 1)
    error, settled, stale = world.answer(
        lambda done: queue.settle_leases([first.token, "none"], Outcome.NACK, done, delay_ms=3_600_000)
    )
    assert (error, settled, stale) == (None, 1, ["none"]) and outcomes(world) == ["nack"]
    queue.give_back([second])
    assert outcomes(world) == ["nack", "returned"]
    assert world.answer(lambda done: queue.settle_by_id(fourth.delivery.message.seq, done)) == (None, True)
    assert outcomes(world) == ["nack", "returned", "deleted"]
    end_ms = third.expires_ms
    world.wait_until(lambda: world.lab.host.now_ms() > end_ms + 2000)
    assert outcomes(world) == ["nack", "returned", "deleted", "expired"]


def test_transaction_is_one_publish_span_and_ends_settled_spans(world: TracedWorld) -> None:
    source, target, failed = world.queue(), world.queue(), world.queue(max_message_size=1)
    world.publish(source, "a", "b")
    peer = world.peer(source)
    peer.expect("a", "b")
    world.spans.clear()
    transaction = world.broker.transaction()
    transaction.ack(peer.consumer, peer.seqs("a"))
    for body in (b"1", b"2"):
        transaction.publish(target, Message(body))
    assert world.answer(transaction.commit) == (None,)
    (publish,) = found(world, "publish transaction")
    assert publish.attributes is not None and publish.attributes["messaging.batch.message_count"] == 2
    assert outcomes(world) == ["ack"]
    refused = world.broker.transaction()
    refused.reject(peer.consumer, peer.seqs("b"))
    refused.publish(failed, Message(b"too large"))
    (error,) = world.answer(refused.commit)
    assert isinstance(error, CurbstoneError)
    assert outcomes(world) == ["ack"], "what was not settled continues"
    peer.settle("ack", "b")
    assert outcomes(world) == ["ack", "ack"]


def test_refused_publish_span_is_an_error(world: TracedWorld) -> None:
    queue = world.queue(max_message_size=1)
    answers: list[CurbstoneError | None] = []
    try:
        queue.publish([Message(b"too large")], lambda error, _first, _count: answers.append(error))
        world.wait_until(lambda: answers)
    except CurbstoneError as error:
        answers.append(error)
    assert answers[0] is not None
    (publish,) = found(world, "publish")
    assert publish.status.status_code is StatusCode.ERROR and publish.status.description == str(answers[0])


def test_events_give_each_queue_the_same_trace(world: TracedWorld) -> None:
    queues = [world.queue(), world.queue()]
    for queue in queues:
        assert world.answer(lambda done, queue=queue: world.broker.bind("e", queue.name, done)) == (None,)  # type: ignore[misc]
    assert world.answer(lambda done: world.broker.publish_event("e", [Message(b"x")], done))[0] is None
    (publish,) = found(world, "publish")
    for queue in queues:
        assert world.pop(queue) is not None
    context = publish.get_span_context()
    assert context is not None
    parents = [span.parent.span_id for span in found(world, "deliver") if span.parent]
    assert parents == [context.span_id, context.span_id]


def test_unsampled_trace_changes_no_message_and_creates_no_span(world: TracedWorld) -> None:
    never = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    broker = traced(world.lab.broker, world.lab.host, never)
    queue = broker.get(world.queue().name)
    world.publish(queue, "a", headers=b"x:1\n")
    delivery = world.pop(queue)
    assert delivery is not None and delivery.message.headers == b"x:1\n"
    sampled = world.broker.get(queue.name)
    world.publish(sampled, "a", headers=UNSAMPLED)
    assert world.pop(sampled) is not None
    assert not world.spans.get_finished_spans(), "the producer has decided that this trace is not sampled"


@pytest.mark.parametrize(
    "block", [b"traceparent:nonsense\n", b"traceparent:\n", b"traceparent:\\x\n", b"x-traceparent:1\n"]
)
def test_invalid_traceparent_is_ignored(world: TracedWorld, block: bytes) -> None:
    queue = world.queue()
    world.publish(queue, "a", headers=block)
    delivery = world.pop(queue)
    assert delivery is not None and delivery.message.headers.startswith(block)
    (publish,) = found(world, "publish")
    assert publish.parent is None
