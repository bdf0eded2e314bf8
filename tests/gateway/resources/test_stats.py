"""Figures as JSON, and how long until a queue is full."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from curbstone.gateway.resources.metrics.rates import MEMORY_MS, STEP_MS, Filling, Rates
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("stats") / "data", "--cap", "128KiB") as process:
        for project, queue, count in (("a", "few", 1), ("a", "many", 3), ("b", "none", 0)):
            call(process, "PUT", f"/v2/{project}/queues/{queue}", {})
            for _ in range(count):
                call(process, "POST", f"/v2/{project}/queues/{queue}/messages", "x")
        yield process


def call(server: ServerProcess, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data=data, method=method)) as reply:
        text = reply.read()
    return json.loads(text) if text.startswith(b"{") else text.decode()


def names(stats: Any) -> list[str]:
    return [queue["queue"] for queue in stats["queues"]]


def test_queues_can_be_sorted_by_name_or_figure(server: ServerProcess) -> None:
    assert names(call(server, "GET", "/v2/stats")) == ["few", "many", "none"]
    assert names(call(server, "GET", "/v2/stats?order=messages_ready")) == ["many", "few", "none"]
    assert names(call(server, "GET", "/v2/stats?order=messages_published&limit=1&offset=1")) == ["few"]
    page = call(server, "GET", "/v2/stats?search=A/M&limit=0")
    assert (names(page), page["queues_chosen"], page["queues_count"]) == ([], 1, 3)
    assert names(call(server, "GET", "/v2/stats?project=b")) == ["none"]


def test_busiest_queues_are_first(server: ServerProcess) -> None:
    """Those that have the most of a counter may have been busy long ago."""

    def busiest() -> dict[str, Any]:
        page: dict[str, Any] = call(server, "GET", "/v2/stats?order=messages_published_per_second&limit=1")
        assert page["queues_chosen"] == 3 and len(page["queues"]) == 1
        found: dict[str, Any] = page["queues"][0]
        assert found["messages_per_second"] >= found["messages_published_per_second"]
        return found

    assert busiest()["queue"] == "many", "at first, since the start"
    deadline_s = time.monotonic() + 60
    while busiest()["queue"] != "none":
        assert time.monotonic() < deadline_s
        call(server, "POST", "/v2/b/queues/none/messages", {"busy": "now"})


def test_invalid_order_is_refused_and_counted(server: ServerProcess) -> None:
    before = call(server, "GET", "/v2/stats")["refusals"]["http"].get("bad_request", 0)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        call(server, "GET", "/v2/stats?order=size")
    assert call(server, "GET", "/v2/stats")["refusals"]["http"]["bad_request"] == before + 1


def test_stats_match_metrics(server: ServerProcess) -> None:
    stats, metrics = call(server, "GET", "/v2/stats"), call(server, "GET", "/metrics")
    (many,) = [queue for queue in stats["queues"] if queue["queue"] == "many"]
    for name in ("messages_ready", "cap_bytes", "messages_published"):
        total = "_total" if name == "messages_published" else ""
        assert f'curbstone_queue_{name}{total}{{project="a",queue="many"}} {float(many[name])}' in metrics
    assert f'version="{stats["version"]}"' in metrics
    assert many["oldest_message_age_seconds"] > 0
    assert stats["commits"]["sync_seconds"]["buckets"][-1][0] is None
    assert stats["commits"]["sync_seconds"]["buckets"][-1][1] > 0


def test_connections_and_refusals_are_reported_by_protocol(server: ServerProcess) -> None:
    with socket.create_connection(server.stomp) as stomp, socket.create_connection(server.mqks) as mqks:
        stomp.sendall(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        assert stomp.recv(9) == b"CONNECTED"
        stats = call(server, "GET", "/v2/stats")
        assert stats["connections"]["stomp"] == 1
        assert stats["connections"]["mqks"] == 1
        assert stats["connections"]["http"] >= 1
        stomp.sendall(b"NONSENSE\n\n\0")
        while stomp.recv(4096):
            pass
        mqks.sendall(b"id nonsense\n")
        assert b"error" in mqks.recv(4096)
    refusals = call(server, "GET", "/v2/stats")["refusals"]
    assert sum(refusals["stomp"].values()) == 1
    assert sum(refusals["mqks"].values()) == 1
    assert 'curbstone_refusals_total{protocol="stomp",reason=' in call(server, "GET", "/metrics")


def test_rate_is_recent() -> None:
    rates = Rates(10_000)
    assert rates.update("q", (0, 7), 0) is None
    assert rates.update("q", (9, 9), STEP_MS - 1) is None, "too soon to tell"
    for second in range(1, 60):
        assert rates.update("q", (50 * second, 7), 1000 * second) == pytest.approx((50, 0))
    assert rates.update("q", (2950, 7), 59_001) == pytest.approx((50, 0)), "nothing is learned within a moment"
    slower, nothing = rates.update("q", (2950, 7), 69_000) or (0, 0)
    assert 10 < slower < 25 and not nothing, "after the memory's time about a third is left"
    rates.forget("q")
    assert rates.update("q", (3000, 7), 70_000) is None


def test_growing_queue_fills_at_the_predicted_time() -> None:
    filling = Filling()
    assert filling.update("q", 0, 1_000_000, 0) is None
    for second in range(1, 100):
        left = filling.update("q", 1000 * second, 1_000_000, 1000 * second)
        assert left is not None
        assert abs(left - (1000 - second)) < 1


def test_prediction_recovers_when_growth_stops() -> None:
    filling = Filling()
    filling.update("q", 0, 1000, 0)
    first = filling.update("q", 100, 1000, 10_000)
    assert first is not None
    later = filling.update("q", 100, 1000, 10_000 + MEMORY_MS)
    assert later is not None and later > first
    assert filling.update("q", 0, 1000, 20_000 + 2 * MEMORY_MS) is None
    filling.forget("q")
    assert filling.update("q", 500, 1000, 0) is None
