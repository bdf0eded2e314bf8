"""Ctrl-C and SIGTERM end a command alike: it gives back what it holds at once, and says what was done."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.processes import COMMAND
from tests.kit.server import ServerProcess, clean_environment
from tests.kit.waiting import wait_until

WAIT_S = 60
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(server: ServerProcess, tmp_path: Path) -> Iterator[Start]:
    """Start a command against the server; the queues `a` and `b` exist, `a` with ten large messages."""
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        for name in "ab":
            http.put(f"/v2/default/queues/{name}")
        batch = [{"message": "x" * 100_000} for _ in range(10)]
        http.post("/v2/default/queues/a/messages/batch", json=batch).raise_for_status()
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> subprocess.Popen[bytes]:
        command = [*COMMAND, *args]
        environment = clean_environment(CURBSTONE_SERVER=server.url)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def counts(server: ServerProcess, queue: str) -> tuple[int, int]:
    info = httpx.get(f"{server.url}/v2/default/queues/{queue}", trust_env=False).json()
    return info["rdy"], info["wip"]


def wait_for_counts(server: ServerProcess, queue: str, rdy: int, wip: int, process: subprocess.Popen[bytes]) -> None:
    def is_so() -> bool:
        assert process.poll() is None, process.communicate()
        return counts(server, queue) == (rdy, wip)

    wait_until(is_so)


def end(process: subprocess.Popen[bytes], number: int) -> tuple[int, bytes, bytes]:
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


class Slow(BaseHTTPRequestHandler):
    """A server that has the queue, and takes the first of what is published, and for all else for ever."""

    done = threading.Event()

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        batch = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.server.has_one:  # type: ignore[attr-defined]
            self.server.has_one = True  # type: ignore[attr-defined]
            self._answer({"ids": [str(number) for number in range(len(batch))]})
        else:
            self.server.is_asked.set()  # type: ignore[attr-defined]
            self.server.is_over.wait(WAIT_S)  # type: ignore[attr-defined]

    def _answer(self, fields: dict[str, Any]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def slow() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    made.has_one, made.is_asked, made.is_over = False, threading.Event(), threading.Event()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.is_over.set()
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_interrupted_move_requeues_remaining_messages(
    server: ServerProcess, start: Start, slow: Any, number: int, code: int
) -> None:
    """After SIGTERM nobody got what it had leased for 60 s."""
    there = f"http://127.0.0.1:{slow.server_address[1]}"
    process = start("move", "--from=a", "--to=b", "--follow", "--to-server", there)
    assert slow.is_asked.wait(WAIT_S)
    assert counts(server, "a") == (0, 8), "two of 100 kB are published at a time"
    assert end(process, number) == (code, b"2 messages moved\n", b"")
    assert counts(server, "a") == (8, 0)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_waiting_move_ends_when_interrupted(server: ServerProcess, start: Start, number: int, code: int) -> None:
    process = start("move", "--from=a", "--to=b", "--follow", "--json")
    wait_for_counts(server, "b", 10, 0, process)
    while counts(server, "a") != (0, 0):
        assert process.poll() is None
    ended, out, _err = end(process, number)
    assert ended == code
    # The answer about the last two may not have come yet.
    assert out in (b'{"moved":8,"maybe_twice":0}\n', b'{"moved":10,"maybe_twice":0}\n')


def test_interrupted_receive_requeues_unsettled_messages(server: ServerProcess, start: Start) -> None:
    process = start("recv", "a", "--count=0")
    assert process.stdout
    assert process.stdout.read(1) == b"x"  # so it has them all; the pipe is full, and it waits
    assert counts(server, "a") == (0, 10)
    code, _out, err = end(process, signal.SIGTERM)
    assert (code, err) == (143, b"")
    assert counts(server, "a") == (10, 0)


def test_interrupted_import_reports_its_progress(server: ServerProcess, start: Start) -> None:
    process = start("import")
    assert process.stdin
    for line in ({"queue": "default/b", "message": "1"}, {"queue": "default/a", "options": {}}):
        process.stdin.write(json.dumps(line).encode() + b"\n")
    process.stdin.flush()
    wait_for_counts(server, "b", 1, 0, process)
    code, out, _err = end(process, signal.SIGTERM)
    assert code == 143
    assert out in (b"0 messages imported\n", b"1 message imported\n"), "the answer may not have come yet"
