"""Hostile clients at every port at once, while honest ones work: nothing honest is lost, and nothing is left behind."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.killable import HANG_S
from tests.faults.stopwatch import Stopwatch
from tests.faults.witness import Login, Witness, bearer, call, memory_bytes
from tests.kit.guarded_server import guarded_server
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="figures are read from /proc")

ROOT = Path(__file__).resolve().parents[2]
GROWTH_BYTES_MAX = 160 * 1024 * 1024
"""The newest messages of queues are kept in memory, 64 MiB together, and so is what was begun: another 64 MiB."""
FILES_MORE_MAX = 30
"""Queues that attacks made, and connections that linger."""


@contextmanager
def hostile(server: ServerProcess) -> Iterator[dict[str, int]]:
    """Attack; afterwards the dictionary says how often."""
    addresses = [f"{host}:{port}" for host, port in (server.stomp, server.http, server.mqks)]
    rounds: dict[str, int] = {}
    # Attackers have processors of their own, elsewhere. Here they take what the server and the honest clients leave:
    # what is measured is how long the server makes others wait, and not who gets a core of this machine.
    command = ["nice", "-n", "10", sys.executable, "-m", "tests.faults.hostile", *addresses]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"all attack\n"
            yield rounds
            out, _ = process.communicate(timeout=HANG_S)
            rounds.update(json.loads(out))
        finally:
            process.kill()


class HttpClient:
    """Publishes and pops, one after the other, on one connection."""

    def __init__(self, server: ServerProcess, login: Login | None, stop: threading.Event) -> None:
        self._server = server
        self._fields = bearer(login)
        self._stop = stop
        self.times = Stopwatch(server.process.pid)
        self.problems: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection(*self._server.http, timeout=HANG_S)
        try:
            number = 0
            while not self._stop.is_set():
                body = b"honest %d" % number
                number += 1
                for method, status in (("POST", 201), ("DELETE", 200)):
                    with self.times.call():
                        sent = body if method == "POST" else None
                        connection.request(method, "/v2/default/queues/polite/messages", sent, self._fields)
                        reply = connection.getresponse()
                        said = reply.read()
                    if reply.status != status or (method == "DELETE" and said != body):
                        self.problems.append(f"{method} {body!r}: {reply.status} {said!r}")
        except OSError as error:
            self.problems.append(f"the connection ended: {error}")
        finally:
            connection.close()


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def threads_of(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def longest_sync(server: ServerProcess, login: Login | None) -> str:
    """Return how long the disk took for a sync at most: nobody can be confirmed anything meanwhile."""
    request = urllib.request.Request(server.url + "/metrics", headers=bearer(login))
    with urllib.request.urlopen(request, timeout=HANG_S) as reply:
        lines = reply.read().decode().splitlines()
    buckets = [line for line in lines if line.startswith("curbstone_sync_duration_seconds_bucket")]
    counts = [(float(line.partition('le="')[2].partition('"')[0]), float(line.rpartition(" ")[2])) for line in buckets]
    bound, all_of_them = next((bound, count) for bound, count in counts if count == counts[-1][1])
    return f"{all_of_them:.0f} syncs, none above {1000 * bound:.0f} ms"


def attacked(server: ServerProcess, duration_s: float, figures: bool, login: Login | None = None) -> None:
    """Let honest clients work for so long while all attacks are made; then look at what is left of them."""
    witness = Witness(server, login)
    for queue in ("hostile", "polite"):
        assert call(server, f"/v2/default/queues/{queue}", "PUT", login=login)[0] == 201
    stop = threading.Event()
    polite = HttpClient(server, login, stop)
    times = Stopwatch(server.process.pid)
    with witness.connect() as peer:
        assert witness.publish(peer, 50) == 50
        files, threads, memory = open_files(server), threads_of(server), memory_bytes(server)
        peak = memory
        thread = threading.Thread(target=polite.run)
        with hostile(server) as rounds:
            thread.start()
            end = time.monotonic() + duration_s
            while time.monotonic() < end:
                with times.call():
                    assert witness.publish(peer, 1) == 1
                peak = max(peak, memory_bytes(server))
            stop.set()
            thread.join()
        assert not polite.problems
        assert all(rounds.values()), f"not every attack was made: {rounds}"
        wait_until(lambda: open_files(server) <= files + FILES_MORE_MAX, "connections of the attackers are left")
        wait_until(lambda: memory_bytes(server) - memory < GROWTH_BYTES_MAX, "the memory is not given back")
        assert threads_of(server) <= threads + 8, "the disk's threads, and none for attackers"
        if figures:
            print(f"STOMP: {times.figures()}")
            print(f"HTTP: {polite.times.figures()}")
            print(longest_sync(server, login))
            grown = (memory_bytes(server) - memory) / 1e6
            print(
                f"memory {memory / 1e6:.0f} MB, at most {(peak - memory) / 1e6:.0f} more, {grown:.0f} more at the end"
            )
            print(f"files {files}, then {open_files(server)}; threads {threads}, then {threads_of(server)}")
            print(f"attacks: {rounds}")
    witness.drain()
    assert "Traceback" not in server.log


SOAK_S = float(os.environ.get("CURBSTONE_HOSTILE_SECONDS", "60"))


@pytest.mark.parametrize("duration_s", [5, pytest.param(SOAK_S, marks=pytest.mark.soak)])
def test_honest_clients_work_beside_hostile_ones(tmp_path: Path, duration_s: float) -> None:
    with ServerProcess(tmp_path / "data", "--log-level=error") as server:
        attacked(server, duration_s, duration_s > 5)


@pytest.mark.soak
def test_users_work_beside_hostile_clients_that_do_not_log_in(tmp_path: Path) -> None:
    users = '[users.ann]\ngrants = ["send,receive,peek,manage default/*", "metrics server"]\n'
    with guarded_server(tmp_path, users, "--log-level=error") as it:
        attacked(it.server, SOAK_S, True, ("ann", it.secrets["ann"]))
