"""Histories of clients of a server that is killed, checked by Porcupine and not by us."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.cluster.gateway import GatewayProcess
from tests.crash.killable import KillableServer
from tests.crash.test_real_file import seed_of_run
from tests.histories.clients import Clients
from tests.histories.judge import Judge, needs_porcupine
from tests.histories.plants import PLANTS, lose
from tests.histories.record import Event
from tests.kit.rabbitmq import needs_rabbitmq
from tests.kit.results import record
from tests.kit.server import ServerProcess

QUEUE = "/v2/default/queues/q"


def is_possible(judge: Judge, events: list[Event], *models: str) -> None:
    """Raise AssertionError if a history is impossible, and record the result."""
    try:
        operations = judge.allows(events, *models)
    except AssertionError:
        record("histories", {"histories": 1}, is_finding=True)
        raise
    record("histories", {"histories": 1, "operations": operations})


def recorded(tmp_path: Path, messages: int, kills: int) -> list[Event]:
    rng = _rng()
    with ServerProcess(tmp_path / "data", "--log-level=error") as process:
        httpx.put(process.url + QUEUE, json={"lease": 3600}).raise_for_status()
        return _run(KillableServer(process), rng, messages, kills, has_keys=True)


def recorded_on_a_cluster(tmp_path: Path, url: str, messages: int, kills: int) -> list[Event]:
    """The same with the engine on a RabbitMQ node, of which only the gateway is killed."""
    rng = _rng()
    with GatewayProcess(tmp_path / "gateway", url, "--log-level=error") as process:
        httpx.put(process.url + QUEUE, json={"lease": 5}).raise_for_status()
        events = _run(KillableServer(process), rng, messages, kills, has_keys=False)
        httpx.delete(process.url + QUEUE).raise_for_status()
    return events


def _rng() -> Random:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    return Random(seed)


def _run(server: KillableServer, rng: Random, messages: int, kills: int, *, has_keys: bool) -> list[Event]:
    def kill() -> None:
        server.kill()
        server.start()

    return Clients(lambda: [server.boot.http], rng, messages, has_keys=has_keys).run([kill] * kills, rng)


@needs_porcupine
def test_history_of_a_killed_server_is_linearizable(tmp_path: Path, judge: Judge) -> None:
    is_possible(judge, recorded(tmp_path, messages=60, kills=4))


@needs_porcupine
@pytest.mark.soak
def test_histories_of_killed_servers_are_linearizable_for_as_long_as_asked(tmp_path: Path, judge: Judge) -> None:
    end = time.monotonic() + float(os.environ.get("CURBSTONE_CRASH_SECONDS", "60"))
    for number in count():
        if time.monotonic() > end:
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        is_possible(judge, recorded(folder, messages=60, kills=4))


@needs_porcupine
@needs_rabbitmq
@pytest.mark.parametrize(("kills", "model"), [(0, "once"), (2, "kept")])
def test_history_of_a_cluster_is_linearizable(
    tmp_path: Path, judge: Judge, node_url: str, kills: int, model: str
) -> None:
    """If a gateway is killed, a message may be stored twice, or delivered again after its ack; none is lost."""
    is_possible(judge, recorded_on_a_cluster(tmp_path, node_url, 40, kills), model)


@needs_porcupine
def test_cluster_model_refuses_a_loss(tmp_path: Path, judge: Judge) -> None:
    events = recorded(tmp_path, messages=10, kills=1)
    is_possible(judge, events, "kept")
    judge.refuses(lose(events), "kept")


@needs_porcupine
@pytest.mark.parametrize("plant", PLANTS)
def test_impossible_history_is_refused(
    tmp_path: Path, judge: Judge, plant: Callable[[list[Event]], list[Event]]
) -> None:
    judge.refuses(plant(recorded(tmp_path, messages=10, kills=1)))
