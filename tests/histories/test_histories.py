"""Histories of clients of a server that is killed, checked by Porcupine and not by us.

Producers publish with idempotency keys and ordering keys, and again until they are answered; consumers lease, settle
and give back; the server is killed and started again meanwhile. `checker/` has the models. Needs Go, and the source of
github.com/anishathalye/porcupine:

    CURBSTONE_PORCUPINE=/path/to/porcupine pytest tests/histories
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.cluster.gateway import GatewayProcess
from tests.crash.killable import KillableServer
from tests.crash.test_real_file import seed_of_run
from tests.histories.record import Event, Operation, Recorder, written
from tests.kit.rabbitmq import needs_rabbitmq
from tests.kit.results import record
from tests.kit.server import ServerProcess, clean_environment

PORCUPINE = os.environ.get("CURBSTONE_PORCUPINE", "")
CHECKER = Path(__file__).parent / "checker"
QUEUE = "/v2/default/queues/q"
PRODUCERS, CONSUMERS, KEYS = 4, 3, 6
RETRY_S = 0.02
THREAD_S_MAX = 60


def missing() -> str:
    """Return why no history can be checked here, or an empty text."""
    if not PORCUPINE:
        return "CURBSTONE_PORCUPINE does not name the folder of Porcupine's source"
    return "" if shutil.which("go") else "there is no Go (Debian's golang-go)"


needs_porcupine = pytest.mark.skipif(bool(missing()), reason=missing())


@cache
def checker(work: Path) -> Path:
    """Build the checker and return its path."""
    (work / "go.work").write_text(f"go 1.19\n\nuse (\n\t{CHECKER}\n\t{Path(PORCUPINE).resolve()}\n)\n")
    environment = clean_environment(GOWORK=str(work / "go.work"), GOPROXY="off", GOFLAGS="")
    subprocess.run(["go", "build", "-o", str(work / "histories"), "."], cwd=CHECKER, env=environment, check=True)
    return work / "histories"


def check(work: Path, file: Path, *models: str) -> subprocess.CompletedProcess[str]:
    command = [str(checker(work)), str(file), "60", *models]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    return done


def is_possible(work: Path, file: Path, *models: str) -> None:
    """Raise AssertionError if a history is impossible, and record the result."""
    done = check(work, file, *models)
    operations = re.findall(r"(\d+) operations", done.stdout)
    counts = {"histories": 1, "operations": int(operations[0]) if operations else 0}
    record("histories", counts, is_finding=done.returncode == 1)
    assert done.returncode == 0, done.stdout + done.stderr


class Clients:
    """Producers and consumers of one queue, each on a thread, with a server that may be gone at any time."""

    def __init__(self, server: KillableServer, rng: Random, messages: int, *, has_keys: bool = True) -> None:
        """`has_keys`: whether the engine knows idempotency keys and ordering keys, and counts what it has."""
        self.server = server
        self._has_keys = has_keys
        self._acked: set[str] = set()
        self.recorder = Recorder()
        self._messages = messages
        self._publishing = PRODUCERS
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._failures: list[BaseException] = []
        works = [self._produce] * PRODUCERS + [self._consume] * CONSUMERS
        self._threads = [
            threading.Thread(target=self._watched, args=(work, number, Random(rng.getrandbits(64))))
            for number, work in enumerate(works)
        ]

    def run(self, kills: int, rng: Random) -> None:
        """Publish and consume everything, with so many kills; raise the first error of a client."""
        for thread in self._threads:
            thread.start()
        for _ in range(kills):
            self._done.wait(0.05 + rng.random() * 0.5)
            self.server.kill()
            self.server.start()
        self._wait_until_drained()
        self._done.set()
        for thread in self._threads:
            thread.join(THREAD_S_MAX)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]
        for number in range(PRODUCERS):
            for index in range(self._messages):
                message, key = _names(number, index)
                self.recorder.invoke("drained", message=message, key=key).end("ok")

    def _wait_until_drained(self) -> None:
        for _ in range(int(THREAD_S_MAX / RETRY_S)):
            if self._failures or (not self._publishing and self._is_empty()):
                return
            self._done.wait(RETRY_S)
        if self._has_keys or self._publishing:
            raise AssertionError(f"not drained: {self.server.get(QUEUE)}, {self._publishing} producers publish")

    def _is_empty(self) -> bool:
        """Return whether nothing is left. A cluster's counts are late, so there all messages have to be acked."""
        if self._has_keys:
            return self.server.count("default/q") == 0
        return len(self._acked) == PRODUCERS * self._messages

    def _watched(self, work: Callable[[int, Random], None], number: int, rng: Random) -> None:
        try:
            work(number, rng)
        except BaseException as error:
            self._failures.append(error)
            self._done.set()

    def _try(
        self, operation: Operation | None, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes] | None:
        """POST; return status and body, or None if there was no answer: the server may have done it or not."""
        connection = http.client.HTTPConnection(*self.server.boot.http, timeout=THREAD_S_MAX)
        try:
            connection.request("POST", QUEUE + path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            if operation is not None:
                operation.end("info")
            self._done.wait(RETRY_S)
            return None
        finally:
            connection.close()

    def _produce(self, number: int, rng: Random) -> None:
        for index in range(self._messages):
            message, key = _names(number, index)
            headers = {"Idempotency-Key": f'"{message}"', "x-key": key} if self._has_keys else {"x-group": key}
            while not self._done.is_set():
                operation = self.recorder.invoke("publish", message=message, key=key)
                reply = self._try(operation, "/messages", message.encode(), headers)
                if reply is not None:
                    assert reply[0] == 201, reply
                    operation.end("ok")
                    break
            if rng.random() < 0.3:
                self._done.wait(rng.random() * 0.02)
        with self._lock:
            self._publishing -= 1

    def _consume(self, _number: int, rng: Random) -> None:
        while not self._done.is_set():
            operation = self.recorder.invoke("lease")
            reply = self._try(None, "/messages/lease", json.dumps({"count": rng.randrange(1, 4)}).encode())
            if reply is None:
                continue
            assert reply[0] == 200, reply
            messages = json.loads(reply[1])["messages"]
            for each in messages:
                operation.delivered(each["message"], _key(each["message"]), each["id"])
            for each in messages:
                if rng.random() < 0.1:
                    self._try(None, "/messages/nack", _ids(each))
                else:
                    self._ack(each)
            if not messages:
                self._done.wait(RETRY_S)

    def _ack(self, each: dict[str, str]) -> None:
        operation = self.recorder.invoke("ack", message=each["message"], key=_key(each["message"]))
        reply = self._try(operation, "/messages/ack", _ids(each))
        if reply is not None:
            assert reply[0] == 200, reply
            is_settled = bool(json.loads(reply[1])["settled"])
            operation.end("ok" if is_settled else "fail")
            if is_settled:
                self._acked.add(each["message"])


def _ids(delivery: dict[str, str]) -> bytes:
    return json.dumps({"ackIds": [delivery["ackId"]]}).encode()


def _names(producer: int, index: int) -> tuple[str, str]:
    message = f"{producer}-{index}-{index % KEYS}"
    return message, _key(message)


def _key(message: str) -> str:
    return f"k{message.rpartition('-')[2]}"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


def recorded(tmp_path: Path, messages: int, kills: int) -> list[Event]:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    rng = Random(seed)
    with ServerProcess(tmp_path / "data", "--log-level=error") as process:
        httpx.put(process.url + QUEUE, json={"lease": 3600}).raise_for_status()
        clients = Clients(KillableServer(process), rng, messages)
        clients.run(kills, rng)
    return _history(clients)


def recorded_on_a_cluster(tmp_path: Path, url: str, messages: int, kills: int) -> list[Event]:
    """The same with the engine on a RabbitMQ node, of which only the gateway is killed."""
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    rng = Random(seed)
    with GatewayProcess(tmp_path / "gateway", url, "--log-level=error") as process:
        httpx.put(process.url + QUEUE, json={"lease": 5}).raise_for_status()
        clients = Clients(KillableServer(process), rng, messages, has_keys=False)
        clients.run(kills, rng)
        httpx.delete(process.url + QUEUE).raise_for_status()
    return _history(clients)


def _history(clients: Clients) -> list[Event]:
    return [event for event in clients.recorder.events if event["f"] != "lease"]


@needs_porcupine
def test_the_history_of_a_queue_whose_server_is_killed_is_possible(tmp_path: Path, work: Path) -> None:
    events = recorded(tmp_path, messages=60, kills=4)
    is_possible(work, written(events, tmp_path / "history"))


@needs_porcupine
@needs_rabbitmq
@pytest.mark.parametrize(("kills", "model"), [(0, "once"), (2, "kept")])
def test_the_history_of_a_queue_on_a_cluster_is_possible(
    tmp_path: Path, work: Path, node_url: str, kills: int, model: str
) -> None:
    """If a gateway is killed, a message may be stored twice, or delivered again after its ack; none is lost."""
    events = recorded_on_a_cluster(tmp_path, node_url, 40, kills)
    is_possible(work, written(events, tmp_path / "history"), model)


@needs_porcupine
def test_the_model_of_clusters_refuses_a_loss(tmp_path: Path, work: Path) -> None:
    events = recorded(tmp_path, messages=10, kills=1)
    is_possible(work, written(events, tmp_path / "history"), "kept")
    assert check(work, written(lose(events), tmp_path / "history"), "kept").returncode == 1


def lose(events: list[Event]) -> list[Event]:
    """A confirmed message is never delivered."""
    victim = next(e["value"]["message"] for e in events if (e["f"], e["type"]) == ("publish", "ok"))
    return [e for e in events if e["f"] in ("publish", "drained") or e["value"]["message"] != victim]


def double(events: list[Event]) -> list[Event]:
    """A message is there twice, with two ids."""
    first, second = (e for e in events if e["f"] == "deliver" and e["process"] == _a_delivery(events))
    more = [deepcopy(e) | {"process": -1} for e in (first, second)]
    for event in more:
        event["value"]["id"] += "0"
    return [*events, *more]


def come_back(events: list[Event]) -> list[Event]:
    """A message is delivered after its ack was confirmed."""
    ack = next(e for e in events if (e["f"], e["type"]) == ("ack", "ok"))
    late = max(e["time"] for e in events if e["f"] != "drained") + 1
    delivery = [deepcopy(e) for e in events if e["f"] == "deliver" and e["value"]["message"] == ack["value"]["message"]]
    return [*events, *(e | {"process": -1, "time": late} for e in delivery[:2])]


def swap(events: list[Event]) -> list[Event]:
    """Two messages of a key are delivered and acked in each other's place."""
    acked = [e["value"] for e in events if (e["f"], e["type"]) == ("ack", "ok") and e["value"]["key"] == "k0"]
    one, two = acked[0], acked[-1]
    other = {one["message"]: two["message"], two["message"]: one["message"]}
    ids = {e["value"]["message"]: e["value"]["id"] for e in events if e["f"] == "deliver"}
    changed = deepcopy(events)
    for event in changed:
        if event["f"] in ("deliver", "ack") and event["value"]["message"] in other:
            event["value"]["message"] = other[event["value"]["message"]]
            if event["f"] == "deliver":
                event["value"]["id"] = ids[event["value"]["message"]]
    return changed


def _a_delivery(events: list[Event]) -> int:
    return next(int(e["process"]) for e in events if e["f"] == "deliver")


@needs_porcupine
@pytest.mark.parametrize("plant", [lose, double, come_back, swap])
def test_an_impossible_history_is_refused(
    tmp_path: Path, work: Path, plant: Callable[[list[Event]], list[Event]]
) -> None:
    events = recorded(tmp_path, messages=10, kills=1)
    done = check(work, written(plant(events), tmp_path / "history"))
    assert done.returncode == 1, done.stdout + done.stderr
