"""What systemd is notified of, and what the ready line is where logs are JSON."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.resources.test_stats import call
from tests.kit.server import ServerProcess, clean_environment


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that the server tells its states."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as states:
        states.bind(str(tmp_path / "notify"))
        states.settimeout(60)
        yield states


def test_systemd_is_notified_when_the_server_is_ready_and_when_it_stops(tmp_path: Path, systemd: socket.socket) -> None:
    with ServerProcess(tmp_path / "data", env=clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"))) as server:
        assert systemd.recv(100) == b"READY=1"
        assert call(server, "GET", "/healthz")["status"] == "ok"
        assert server.stop() == 0
        assert systemd.recv(100) == b"STOPPING=1"


def test_watchdog_is_notified_while_the_loop_runs(tmp_path: Path, systemd: socket.socket) -> None:
    reported = clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
    with ServerProcess(tmp_path / "data", env=reported):
        assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]


def test_watchdog_of_another_process_is_ignored(tmp_path: Path, systemd: socket.socket) -> None:
    reported = clean_environment(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000", WATCHDOG_PID="1")
    with ServerProcess(tmp_path / "data", env=reported) as server:
        assert systemd.recv(100) == b"READY=1"
        assert server.stop() == 0
        assert systemd.recv(100) == b"STOPPING=1"


def test_missing_notify_socket_is_reported_and_the_server_serves(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env=clean_environment(NOTIFY_SOCKET=str(tmp_path / "none"))) as server:
        assert call(server, "GET", "/healthz")["status"] == "ok"
        assert server.stop() == 0
        assert "can't send READY=1 to systemd at" in server.log


def test_the_ready_line_is_json_where_logs_are(tmp_path: Path) -> None:
    """A container merges stdout and stderr, and one line of them was not JSON."""
    with ServerProcess(tmp_path / "data", "--log-format=json", "--mqks-addr=") as server:
        ready = json.loads(server.ready_line)
        assert ready["message"] == "ready" and {"time", "level", "logger"} < ready.keys()
        assert ready["listeners"] == {
            "stomp": [f"127.0.0.1:{server.stomp[1]}"],
            "http": [f"127.0.0.1:{server.http[1]}"],
        }


@pytest.mark.parametrize(
    ("given", "named"),
    [("a/*", ["a/x", "a/y"]), ("a/x,*/z", ["a/x", "b/z"]), ("", [])],
    ids=["a project", "two patterns", "none"],
)
def test_queues_in_metrics_can_be_selected(tmp_path: Path, given: str, named: list[str]) -> None:
    reported = clean_environment(CURBSTONE_METRICS_QUEUES=given)
    with ServerProcess(tmp_path / "data", env=reported) as server:
        for name in ("a/queues/x", "a/queues/y", "b/queues/z"):
            call(server, "PUT", f"/v2/{name}", {})
        lines = call(server, "GET", "/metrics").splitlines()
    ready = [line for line in lines if line.startswith("curbstone_queue_messages_ready{")]
    assert [line.split('"')[1] + "/" + line.split('"')[3] for line in ready] == named
    assert f"curbstone_queues_left_out {float(3 - len(named))}" in lines
    assert "curbstone_queues 3.0" in lines
