"""The figures for Prometheus."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from curbstone.core.message import Message
from curbstone.core.names import PRIVATE_PROJECT, private_name
from curbstone.gateway.resources.metrics import exposition
from curbstone.gateway.resources.metrics.figures import Figures
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[str, ...]], float]


async def samples(gateway: Running) -> Samples:
    """Return all samples, each by its name and the values of its labels."""
    reply = await gateway.http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert reply.headers["cache-control"] == "no-store"
    found = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            key = (sample.name, tuple(sample.labels.values()))
            assert key not in found
            found[key] = sample.value
    return found


async def test_the_state_of_a_queue_is_reported(gateway: Running) -> None:
    await gateway.publish("a", "b", "c")
    await gateway.http.post(MESSAGES + "?delay=100", content="d")
    await gateway.http.post(MESSAGES + "/lease", json={"count": 2})
    found = await samples(gateway)
    of_queue = {
        name.removeprefix("curbstone_queue_"): value for (name, labels), value in found.items() if labels == ("p1", "q")
    }
    assert (of_queue["messages_ready"], of_queue["messages_unacked"], of_queue["messages_delayed"]) == (1, 2, 1)
    info = (await gateway.http.get(QUEUE)).json()
    assert (of_queue["disk_bytes"], of_queue["cap_bytes"]) == (info["bytes"], info["cap"])
    assert of_queue["cap_used_ratio"] == info["bytes"] / info["cap"]
    assert of_queue["messages_published_total"] == 4
    assert of_queue["messages_delivered_total"] == 2


async def test_messages_refused_for_room_are_counted_per_queue(gateway: Running) -> None:
    """There was no figure from which an alert could tell that a queue refuses messages at 77 % of its cap."""
    await gateway.http.put("/v2/p2/queues/other", json={})
    await gateway.http.put(QUEUE, json={"cap": "256KiB"})
    while (await gateway.http.post(MESSAGES, content="x" * 1000)).status_code == 201:
        pass
    found = await samples(gateway)
    assert found["curbstone_queue_messages_refused_total", ("p1", "q")] == 1
    assert found["curbstone_queue_messages_refused_total", ("p2", "other")] == 0
    assert found["curbstone_messages_refused_total", ()] == 1
    assert found["curbstone_queue_seconds_to_full", ("p1", "q")] == 0
    assert found["curbstone_queue_available_bytes", ("p1", "q")] < 1000
    assert found["curbstone_queue_available_bytes", ("p2", "other")] > 100_000
    used, reserved = (found[f"curbstone_queue_{name}_bytes", ("p1", "q")] for name in ("disk", "reserved"))
    assert 0 < reserved < 0.2 * 256 * 1024 and used + reserved > 0.8 * 256 * 1024


async def test_totals_add_up_over_queues(gateway: Running) -> None:
    await gateway.http.put("/v2/p2/queues/other", json={"dead_letter": "dead"})
    await gateway.publish("a", "b")
    await gateway.http.post("/v2/p2/queues/other/messages", content="c")
    (lease,) = (await gateway.http.post("/v2/p2/queues/other/messages/lease")).json()["messages"]
    await gateway.http.post("/v2/p2/queues/other/messages/nack", json={"ackIds": [lease["ackId"]]})
    (lease,) = (await gateway.http.post("/v2/p2/queues/other/messages/lease")).json()["messages"]
    await gateway.http.post("/v2/p2/queues/other/messages/nack", json={"ackIds": [lease["ackId"]], "reject": True})
    await gateway.http.delete(MESSAGES)
    found = await samples(gateway)
    assert found["curbstone_messages_delivered_total", ()] == 3
    assert found["curbstone_messages_redelivered_total", ()] == 1
    assert found["curbstone_messages_returned_total", ()] == 1
    assert found["curbstone_messages_rejected_total", ()] == 1
    assert found["curbstone_messages_acknowledged_total", ()] == 1
    assert found["curbstone_messages_dead_lettered_total", ()] == 1
    assert found["curbstone_queues", ()] == 3


async def test_commits_are_counted_and_their_time_is_reported(gateway: Running) -> None:
    before = await samples(gateway)
    await gateway.publish("a", "b", "c")
    await gateway.http.post(MESSAGES + "/batch", json=[{"message": "d"}] * 7)
    after = await samples(gateway)

    def rise(name: str, *labels: str) -> float:
        return (
            after[f"curbstone_commit_{name}", (*labels, "never")]
            - before[f"curbstone_commit_{name}", (*labels, "never")]
        )

    assert rise("duration_seconds_count") == rise("duration_seconds_bucket", "+Inf") == 4
    assert rise("batch_messages_sum") == 10
    assert [rise("batch_messages_bucket", bound) for bound in ("0.0", "1.0", "5.0", "10.0", "+Inf")] == [0, 3, 3, 4, 4]
    assert after["curbstone_commits_failed_total", ()] == 0


async def test_the_buckets_of_the_commits_are_cumulative(gateway: Running) -> None:
    commits = gateway.broker.commits
    for took_us in (1, 100, 101, 1_000_000, 60_000_000):
        commits.took_us.add(took_us)
    found = await samples(gateway)
    name = "curbstone_commit_duration_seconds"
    buckets = {labels[0]: value for (sample, labels), value in found.items() if sample == name + "_bucket"}
    earlier = commits.took_us.count - 5
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["10.0"], buckets["+Inf"]) == (earlier + 4, earlier + 5)
    assert found[name + "_count", ("never",)] == earlier + 5
    assert buckets["0.00025"] - buckets["0.0001"] >= 1
    assert found[name + "_sum", ("never",)] == commits.took_us.sum / 1e6


async def test_each_protocol_has_its_counters(gateway: Running) -> None:
    await gateway.publish("a", "b")
    async with gateway.socket("publish") as socket:
        await socket.send(b"c")
        assert await socket.recv() == ""
    await gateway.http.delete(MESSAGES)
    async with gateway.socket("consume", "?limit=1") as socket:
        for _ in range(4):
            await socket.recv()
    found = await samples(gateway)
    numbers = {
        (name.removeprefix("curbstone_protocol_messages_"), *labels): value
        for (name, labels), value in found.items()
        if name.startswith("curbstone_protocol_messages_") and value
    }
    assert numbers == {
        ("received_total", "http"): 2, ("received_total", "websocket"): 1,
        ("confirmed_total", "http"): 2, ("confirmed_total", "websocket"): 1,
        ("delivered_total", "http"): 1, ("delivered_total", "websocket"): 2,
        ("acknowledged_total", "http"): 1, ("acknowledged_total", "websocket"): 2,
    }  # fmt: skip


async def test_a_total_does_not_fall_when_a_queue_is_deleted(gateway: Running) -> None:
    await gateway.publish("a")
    await samples(gateway)
    await gateway.publish("b")
    await gateway.http.delete(QUEUE)
    for _ in range(2):
        found = await samples(gateway)
        assert found["curbstone_messages_published_total", ()] == 2
        assert found["curbstone_queues", ()] == 0
        assert not any("p1" in labels for _, labels in found)


async def test_the_number_of_series_is_bounded(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curbstone.gateway.resources.metrics.metrics.QUEUES_MAX", 2)
    for name in ("a", "b", "c"):
        await gateway.http.put(f"/v2/a/queues/{name}")
    found = await samples(gateway)
    assert {labels for name, labels in found if name == "curbstone_queue_messages_ready"} == {("a", "a"), ("a", "b")}
    assert found["curbstone_queues", ()] == 4
    assert found["curbstone_queues_left_out", ()] == 2


async def test_concurrent_metrics_requests_are_serialized(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 threads that wrote figures took the interpreter's lock from the event loop: a health check took 0.5 s."""
    asked = 0
    now: list[None] = []
    most = 0
    all_have_asked = threading.Event()
    original, snapshot = exposition.encode_metrics, Figures.snapshot

    async def counted(self: Figures, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await snapshot(self, *args)

    def encode_metrics(*args: Any) -> tuple[bytes, str]:
        nonlocal most
        now.append(None)
        most = max(most, len(now))
        assert all_have_asked.wait(60)
        try:
            return original(*args)
        finally:
            now.pop()

    monkeypatch.setattr(Figures, "snapshot", counted)
    monkeypatch.setattr(exposition, "encode_metrics", encode_metrics)
    replies = asyncio.gather(*[gateway.http.get("/metrics") for _ in range(8)])
    while asked < 8 or not now:
        await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
    all_have_asked.set()
    assert {reply.status_code for reply in await replies} == {200} and most == 1


async def test_totals_include_queues_without_series(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 1,000 queues the console summed up the first ones by name and called it the total."""
    monkeypatch.setattr("curbstone.gateway.resources.metrics.metrics.QUEUES_MAX", 1)
    for name in ("a", "b", "c"):
        await gateway.http.put(f"/v2/a/queues/{name}")
        for delay in ("", "", "?delay=60"):
            await gateway.http.post(f"/v2/a/queues/{name}/messages{delay}", content=b"x")
    await gateway.http.post("/v2/a/queues/c/messages/lease", json={})
    found = await samples(gateway)
    totals = [found[f"curbstone_messages_{state}", ()] for state in ("ready", "unacked", "delayed")]
    assert totals == [5, 1, 3]


async def test_health_and_sync_mode_are_metrics(gateway: Running) -> None:
    found = await samples(gateway)
    assert found["curbstone_up", ()] == 1
    assert found["curbstone_sync_info", ("never",)] == 1
    assert found["process_resident_memory_bytes", ()] > 0


async def test_openmetrics_is_served_on_request(gateway: Running) -> None:
    reply = await gateway.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert "curbstone_queue_messages_ready" in {family.name for family in parse_openmetrics(reply.text)}  # type: ignore[no-untyped-call]


async def test_private_queues_have_no_series(gateway: Running) -> None:
    stored = asyncio.Event()
    gateway.broker.ensure(private_name("topic.c1.1")).publish([Message(b"a", b"")], lambda *_answer: stored.set())
    await stored.wait()
    found = await samples(gateway)
    assert not any(PRIVATE_PROJECT in labels for _, labels in found)
    assert found["curbstone_messages_published_total", ()] == 1


async def test_messages_are_counted_by_priority_if_not_all_default(gateway: Running) -> None:
    await gateway.publish("a")
    assert not [name for name, _ in await samples(gateway) if name == "curbstone_queue_messages_by_priority"]
    for priority in ("9", "9", "0"):
        await gateway.http.post(MESSAGES, content="x", headers={"x-priority": priority})
    found = {
        labels: count for (name, labels), count in (await samples(gateway)).items() if name.endswith("by_priority")
    }
    assert found == {("0", "p1", "q"): 1, ("4", "p1", "q"): 1, ("9", "p1", "q"): 2}
    (figures,) = (await gateway.http.get("/v2/stats")).json()["queues"]
    assert figures["by_priority"] == {"9": 2, "4": 1, "0": 1}
