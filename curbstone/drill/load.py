"""The load of `curbstone drill`: a server that is killed repeatedly, its clients, and their record.

Every message has a unique value, from which its body is derived. A message without a reply is sent again under a new
value. So after the queue is drained, the record shows which messages were lost, redelivered after their ack was
confirmed, changed, or never sent.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO
from zlib import crc32

from curbstone.exit_codes import FAILED, CommandFailed
from curbstone.http_client import ERRORS, Connection

CAP = 1024 * 1024
CAP_TEXT = "1MiB"
PATH = "/v2/default/queues/drill"
PRODUCERS = 2
LEASES = 100
LEASE_S = 600
BODY_BYTES_MAX = 2000
START_S_MAX = 60
TIMEOUT_S = 30
PAUSE_S = 0.02


def body_of(value: str) -> bytes:
    """Return the body of the message with this value."""
    dice = Random(crc32(value.encode()))
    return value.encode() + b" " + dice.randbytes(dice.randrange(BODY_BYTES_MAX))


@dataclass
class Account:
    """The record of the clients. Times are in seconds since the start. Thread-safe."""

    started: float = field(default_factory=time.perf_counter)
    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    settled: dict[str, int] = field(default_factory=dict)
    """For each value, the life of the server in which its ack was confirmed."""
    refused: int = 0
    confirms: list[tuple[float, float]] = field(default_factory=list)
    """The time of each confirm, and its latency."""
    kills: list[float] = field(default_factory=list)
    starts: list[tuple[float, float]] = field(default_factory=list)
    """The time of each start of the server, and how long it took."""
    wrong: list[str] = field(default_factory=list)
    bytes_most: int = 0

    def now(self) -> float:
        """Return the time since the beginning."""
        return time.perf_counter() - self.started

    def deliver(self, body: bytes, life: int) -> str:
        """Record a delivery, and return its value."""
        value = body.partition(b" ")[0].decode("latin-1")
        if value not in self.sent:
            self.wrong.append(f"never sent: {body[:40]!r}")
        elif body != body_of(value):
            self.wrong.append(f"changed: message {value}")
        elif self.settled.get(value, life) < life:
            self.wrong.append(f"redelivered after its ack was confirmed: message {value}")
        self.delivered.add(value)
        return value

    def close(self) -> None:
        """Count confirmed messages that were never delivered as lost. Call this after the queue is drained."""
        self.wrong += [f"lost: message {value}" for value in sorted(self.confirmed - self.delivered)]


class Server:
    """The server under test. A life is the time from a start to the next kill."""

    def __init__(self, directory: Path, account: Account) -> None:
        self.data = directory / "data"
        self._log = directory / "server.log"
        self._account = account
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self.life = 0
        self.url = ""
        self.is_over = False

    def start(self) -> None:
        """Start the server, which begins its next life."""
        began = self._account.now()
        addresses = ["--http-addr=127.0.0.1:0", "--stomp-addr=", "--mqks-addr="]
        # -P: a folder named curbstone in the current directory must not be imported in place of the package.
        program = [sys.executable, "-P", "-m", "curbstone", "serve"]
        command = [*program, "--data", str(self.data), "--cap", CAP_TEXT, *addresses]
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("CURBSTONE_", "NARCONI_"))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=mine)
        assert self._process.stdout is not None
        line = _first_line(self._process, self._process.stdout)
        if not line.startswith("curbstone ready"):
            last = self._log.read_text("utf-8", "replace").rstrip().rpartition("\n")[2]
            raise CommandFailed(f"the server did not start: {last or 'no output'}; see {self._log}", FAILED)
        with self._changed:
            self.url = line.split("http=")[1].split()[0]
            self.life += 1
            self._changed.notify_all()
        self._account.starts.append((began, self._account.now() - began))

    def kill(self) -> None:
        """Kill the server. It must have been alive until now."""
        assert self._process is not None
        if self._process.poll() is not None:
            self._account.wrong.append(f"the server exited unexpectedly with code {self._process.returncode}")
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._account.kills.append(self._account.now())

    def wait_for_start_after(self, life: int) -> None:
        """Wait until the server is restarted after this life, or `end` is called."""
        with self._changed:
            self._changed.wait_for(lambda: self.life > life or self.is_over, TIMEOUT_S)

    def end(self) -> None:
        """Declare that the server will not be restarted."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def check(self) -> None:
        """Measure the queue's directory, to compare it with the cap. Files that disappear do not count."""
        for directory in (self.data / "queues").glob("*"):
            before = _sizes(directory)
            after = _sizes(directory)
            size = sum(min(size, after[name]) for name, size in before.items() if name in after)
            self._account.bytes_most = max(self._account.bytes_most, size)


def _sizes(directory: Path) -> dict[str, int]:
    found = {}
    for path in directory.glob("*"):
        try:
            found[f"{path.name} {path.stat().st_ino}"] = path.stat().st_size
        except OSError:
            continue
    return found


def _first_line(process: subprocess.Popen[str], stdout: IO[str]) -> str:
    deadline = threading.Timer(START_S_MAX, process.kill)
    deadline.start()
    try:
        return stdout.readline()
    finally:
        deadline.cancel()


class Clients:
    """Producers and a consumer, each in its own thread, through all lives of a server."""

    def __init__(self, server: Server, account: Account) -> None:
        self._server = server
        self._account = account
        self._done_sending = threading.Event()
        self.is_drained = threading.Event()
        works = [lambda name=f"p{number}": self._produce(name) for number in range(PRODUCERS)]
        self._threads = [threading.Thread(target=work, daemon=True) for work in [*works, self._consume]]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> bool:
        """Stop sending, and drain the queue. Return whether that was done in time."""
        self._done_sending.set()
        is_drained = self.is_drained.wait(2 * START_S_MAX)
        self._server.end()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        return is_drained

    def _across_restarts(self, work: Callable[[Connection, int], bool]) -> None:
        """Call `work` until it returns False. After a lost connection, continue in the server's next life."""
        while not self._server.is_over:
            life = self._server.life
            try:
                with closing(Connection(f"http://{self._server.url}", timeout_s=TIMEOUT_S)) as client:
                    while work(client, life):
                        pass
                return
            except ERRORS:
                self._server.wait_for_start_after(life)

    def _produce(self, name: str) -> None:
        number = 0
        account = self._account

        def send_one(client: Connection, _life: int) -> bool:
            nonlocal number
            number += 1
            value = f"{name}.{number}"
            account.sent.add(value)
            start = account.now()
            reply = client.request("POST", f"{PATH}/messages", body=body_of(value))
            if reply.status == 201:
                account.confirmed.add(value)
                account.confirms.append((account.now(), account.now() - start))
            elif reply.status == 507:
                account.refused += 1
                self._done_sending.wait(PAUSE_S)
            else:
                account.wrong.append(f"answered {reply.status}: {reply.body[:100]!r}")
                self._done_sending.wait(PAUSE_S)
            return not self._done_sending.is_set()

        self._across_restarts(send_one)

    def _consume(self) -> None:
        account = self._account

        def take_some(client: Connection, life: int) -> bool:
            is_last = self._done_sending.is_set()
            body = {"count": LEASES, "seconds": LEASE_S, "encoding": "base64"}
            leases = client.send_json("POST", f"{PATH}/messages/lease", body).json()["messages"]
            values = [account.deliver(base64.b64decode(lease["message"]), life) for lease in leases]
            if leases:
                client.send_json("POST", f"{PATH}/messages/ack", {"ackIds": [lease["ackId"] for lease in leases]})
                account.settled |= dict.fromkeys(values, life)
                return True
            if is_last and not any(thread.is_alive() for thread in self._threads[:PRODUCERS]):
                self.is_drained.set()
                return False
            self.is_drained.wait(PAUSE_S)
            return True

        self._across_restarts(take_some)
