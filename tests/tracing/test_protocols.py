"""Traces of a real server, from every protocol to every protocol, as a collector gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.mqks_peer import MqksPeer
from tests.cross_protocol.wire import CONSUMERS, PRODUCERS, QUEUE, Sent, http
from tests.kit.server import ServerProcess, clean_environment
from tests.tracing.collector import WAIT_S, Collector

pytestmark = pytest.mark.anyio


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def traced_server(tmp_path: Path, collector: Collector) -> Iterator[ServerProcess]:
    env = clean_environment(OTEL_BSP_SCHEDULE_DELAY="50", NO_PROXY="*")
    with ServerProcess(tmp_path / "data", "--otlp", collector.url, env=env) as server:
        yield server


async def test_delivery_is_in_the_trace_of_its_publish(traced_server: ServerProcess, collector: Collector) -> None:
    async with http(traced_server) as client:
        assert (await client.put(QUEUE, json={"groups": list(CONSUMERS)})).status_code == 201
    for produce in PRODUCERS.values():
        await produce(traced_server, Sent(b"x", "text/plain", {}))
    for group, consume in CONSUMERS.items():
        await consume(traced_server, group, len(PRODUCERS))
    publishes = collector.wait("publish cross/q", lambda spans: len(spans) == len(PRODUCERS))
    deliveries = collector.wait("deliver cross/q", lambda spans: len(spans) == len(PRODUCERS) * len(CONSUMERS))
    places = [(span.trace_id, span.span_id) for span in publishes]
    assert len({trace for trace, _ in places}) == len(PRODUCERS)
    assert not any(span.parent_span_id for span in publishes)
    found = Counter((span.trace_id, span.parent_span_id) for span in deliveries)
    assert found == dict.fromkeys(places, len(CONSUMERS))
    assert all([link.span_id for link in span.links] == [span.parent_span_id] for span in deliveries)
    assert collector.services == {"curbstone"}


async def test_trace_passes_from_a_producer_through_mqks(traced_server: ServerProcess, collector: Collector) -> None:
    with MqksPeer(traced_server.mqks, WAIT_S) as peer:
        peer.call("c", "consume --confirm cross.lines --manual-ack order")
        peer.send(b"m publish --confirm order x")
        answers = [*peer.read()]
        while len(answers) < 2:
            answers += peer.read()
        peer.call("a", "ack --confirm c m")
    (publish,) = collector.wait("publish ", bool)
    (delivery,) = collector.wait("deliver ", bool)
    assert (delivery.trace_id, delivery.parent_span_id) == (publish.trace_id, publish.span_id)


async def test_open_spans_are_sent_at_a_stop_and_a_missing_collector_blocks_nothing(
    tmp_path: Path,
) -> None:
    with Collector() as collector, ServerProcess(tmp_path / "data", "--otlp", collector.url) as server:
        async with http(server) as client:
            assert (await client.put(QUEUE)).status_code == 201
            assert (await client.post(QUEUE + "/messages", content=b"x")).status_code == 201
        assert server.stop() == 0
        collector.wait("publish ", bool)
    with ServerProcess(tmp_path / "data", "--otlp", collector.url) as server:
        async with http(server) as client:
            assert (await client.post(QUEUE + "/messages", content=b"x")).status_code == 201
        assert server.stop() == 0
