"""What a standby serves before it is promoted: its status, and the address of the server."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from curbstone.standby.lag import Lag
from curbstone_client.sync import Client
from tests.kit.authority import Authority
from tests.kit.commands import curbstone
from tests.kit.server import ServerProcess, bodies, call
from tests.kit.waiting import wait_until
from tests.standby.standby_process import StandbyProcess

BACKLOG = "--standby-backlog=1MiB"


def get(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
    """Return the status, the JSON or text, and the headers of an answer."""
    request = urllib.request.Request(url, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, text, fields = reply.status, reply.read(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        status, text, fields = error.code, error.read(), dict(error.headers)
    is_json = "json" in fields.get("content-type", "")
    return status, json.loads(text) if is_json else text.decode(), {name.lower(): fields[name] for name in fields}


def test_standby_serves_its_status_and_redirects_to_the_server(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", BACKLOG) as server,
        StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby,
    ):
        call(server, "PUT", "/v2/default/queues/q", {})
        standby.has_everything(server)
        at = standby.status_url

        status, health, _ = get(f"{at}/healthz")
        assert (status, health["status"], health["role"], health["reasons"]) == (200, "ok", "standby", [])
        for path in ("/readyz", "/readyz?for=consume"):
            status, readiness, headers = get(at + path)
            assert (status, readiness["status"]) == (503, "standby")
            assert "retry-after" not in headers

        standby.has_been_current()
        _, copy, _ = get(f"{at}/v2/standby")
        facts = call(server, "GET", "/v2/standby")
        assert (copy["role"], copy["of"], copy["server"], copy["term"]) == ("standby", server.url, facts["server"], 1)
        assert copy["connected"] and copy["usable"] and not copy["enabled"] and copy["disk_free_bytes"] > 0
        assert not copy["promotable"] and "did not wait for this copy" in copy["lacks"]

        _, text, _ = get(f"{at}/metrics")
        figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert figures["curbstone_standby_connected"] == figures["curbstone_standby_complete"] == "1.0"
        assert figures["curbstone_standby_promotable"] == "0.0" and figures["curbstone_term"] == "1.0"
        assert float(figures["curbstone_standby_applied_bytes_total"]) > 0
        assert float(figures["curbstone_standby_sync_duration_seconds_count"]) > 0
        assert {"curbstone_standby_lag_bytes", "curbstone_standby_lag_seconds"} <= figures.keys()
        assert "curbstone_up" not in figures, "alerts on a server that refuses messages are not for a standby"

        for method, path in [("GET", "/"), ("POST", "/v2/default/queues/q/messages"), ("POST", "/v2/standby/stream")]:
            status, problem, headers = get(at + path, method)
            assert (status, problem["type"], problem["server"]) == (503, "/docs/problems#standby", server.url)
            assert "retry-after" not in headers, "a client should try the other address at once"
        assert get(f"{at}/healthz", "DELETE")[0] == 405
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        status, problem, _ = get(f"{at}/stomp", headers=upgrade | {"sec-websocket-key": "A" * 22 + "=="})
        assert (status, problem["server"]) == (503, server.url)


def test_clients_with_both_addresses_use_the_server(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", BACKLOG) as server,
        StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby,
    ):
        call(server, "PUT", "/v2/default/queues/q", {})
        standby.has_everything(server)
        both = [standby.status_url, server.url]
        done = curbstone("send", "q", "one", "--server", ",".join(both), cwd=tmp_path)
        assert done.code == 0, done.err
        with Client(both) as client:
            client.queue("q").publish("two")
            assert client.call("GET", "/v2/default/queues")["queues"][0]["name"] == "q"
        assert bodies(server) == ["one", "two"]
        refused = curbstone("queues", "--server", standby.status_url, cwd=tmp_path)
        assert refused.code == 1 and f"it keeps a copy of the server at {server.url}" in refused.err


def test_standby_reports_a_missing_server_and_serves_after_promotion(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", BACKLOG) as server:  # noqa: SIM117 its URL is needed
        with StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby:
            standby.has_been_current()
            at = standby.status_url
            server.kill()
            reason = f"not connected to the server at {server.url}"
            wait_until(lambda: get(f"{at}/healthz")[1]["reasons"] == [reason])
            assert get(f"{at}/healthz")[1]["status"] == "degraded"
            assert get(f"{at}/v2/standby")[1]["lag_seconds"] is not None, "it goes on counting"
            assert standby.promote("--accept-loss").code == 0
            assert get(f"{standby.url}/readyz")[0] == 200
            with pytest.raises(urllib.error.URLError):
                get(f"{at}/readyz")


def test_status_has_its_own_address_or_none(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", BACKLOG) as server:
        with StandbyProcess(tmp_path / "other", server.url, BACKLOG, "--status-addr=off") as standby:
            standby.has_everything(server)
            assert "status is at" not in standby.log
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            standby = StandbyProcess(tmp_path / "other", server.url, f"--status-addr=127.0.0.1:{port}")
            assert standby.process.wait(60) == 1
            assert f"the standby's status can't be served on 127.0.0.1:{port}: Address already in use" in standby.log
            standby._wait()
        for address, rule in [("tls://127.0.0.1:0", "needs a certificate"), ("nowhere", "bad address")]:
            done = curbstone("standby", "--of", server.url, "--data", "other", f"--status-addr={address}", cwd=tmp_path)
            assert done.code == 2 and "--status-addr: " in done.err and rule in done.err


def test_the_status_is_served_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.signed("standby")
    options = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", "--status-addr=tls://127.0.0.1:0")
    with (
        ServerProcess(tmp_path / "data", BACKLOG) as server,
        StandbyProcess(tmp_path / "other", server.url, *options) as standby,
    ):
        at = standby.status_url.replace("http://tls://", "https://")
        with urllib.request.urlopen(f"{at}/healthz", context=authority.client(), timeout=60) as reply:
            assert json.load(reply)["role"] == "standby"


def test_a_connection_that_has_sent_nothing_ends_when_the_standby_is_promoted(tmp_path: Path) -> None:
    """Else its client would wait for an answer of a process that continues and has forgotten it."""
    pair = Authority(tmp_path).signed("standby")
    options = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", "--status-addr=tls://127.0.0.1:0")
    with ServerProcess(tmp_path / "data", BACKLOG) as server:  # noqa: SIM117 its URL is needed
        with StandbyProcess(tmp_path / "other", server.url, *options) as standby:
            standby.has_everything(server)
            host, port = standby.status_url.removeprefix("http://tls://").split(":")
            with socket.create_connection((host, int(port)), timeout=60) as client:
                server.kill()
                assert standby.promote("--accept-loss").code == 0
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""


def test_a_standby_of_a_standby_waits_until_that_serves(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", BACKLOG) as server,
        StandbyProcess(tmp_path / "other", server.url, BACKLOG) as standby,
        StandbyProcess(tmp_path / "third", standby.status_url) as third,
    ):
        wait_until(lambda: "is a standby itself and can't be followed; retrying in" in third.log)


def test_lag_counts_from_the_last_complete_moment() -> None:
    lag = Lag()
    lag.reached(0)
    assert lag.current_ms is None and lag.behind_bytes(0) == 0
    lag.replied(100, 1000)
    lag.reached(99)
    assert lag.current_ms is None and lag.behind_bytes(60) == 40
    lag.replied(200, 2000)  # the earlier reply is awaited on: a copy that never catches up whole has a lag, too
    lag.reached(150)
    assert lag.current_ms == 1000 and lag.behind_bytes(150) == 50
    lag.replied(200, 3000)
    lag.begin()
    lag.reached(500)
    assert lag.current_ms == 1000 and lag.behind_bytes(500) == 0, "positions of another life mean nothing"
