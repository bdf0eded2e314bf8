"""SIGKILL of driver and server in the middle: everything arrives, and once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import ServerProcess
from tests.spark import copying, jobs
from tests.spark.kit import call, group_of, make_queue, numbered, publish, take_all

QUEUE = "shop/in"
COPYING = copying.__file__


def held(server: ServerProcess) -> int:
    count: int = call(server.url, "GET", "/v2/shop/queues/out")["rdy"]
    return count


def test_archive_and_copy_are_exact_after_kills_of_server_and_driver(
    spark: Any, server: ServerProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_queue(server.url, QUEUE)
    make_queue(server.url, "shop/out")
    publish(server.url, QUEUE, numbered(1000))
    running = jobs.start(COPYING, server.url, str(tmp_path))
    jobs.wait_until(lambda: jobs.batches(lake) >= 1 and held(server) >= 200, running)
    server.restart(same_ports=True)  # SIGKILL, then on the same data
    publish(server.url, QUEUE, numbered(500, 1000))
    seen, copied = jobs.batches(lake), held(server)
    jobs.wait_until(lambda: jobs.batches(lake) > seen and held(server) > copied, running)
    jobs.kill(running)
    copying.copy(spark, server.url, str(tmp_path), once=True)
    assert jobs.bodies(lake) == numbered(1500)
    assert take_all(server.url, "shop/out") == numbered(1500)
    assert group_of(server.url, QUEUE, "archive")["position"] == 1501


@pytest.mark.soak
def test_many_kills_of_both_change_nothing(spark: Any, server: ServerProcess, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    lake = tmp_path / "lake"
    make_queue(server.url, QUEUE, cap="256MiB")
    make_queue(server.url, "shop/out", cap="256MiB")
    sent = 0
    for _ in range(8):
        publish(server.url, QUEUE, numbered(2000, sent))
        sent += 2000
        running = jobs.start(COPYING, server.url, str(tmp_path))
        batches, copied = jobs.batches(lake) + dice.randrange(1, 5), held(server) + dice.randrange(1, 900)
        jobs.wait_until(lambda batches=batches: jobs.batches(lake) >= batches, running)  # type: ignore[misc]
        if dice.random() < 0.5:
            server.restart(same_ports=True)
        jobs.wait_until(lambda copied=copied: held(server) >= copied, running)  # type: ignore[misc]
        jobs.kill(running)
    copying.copy(spark, server.url, str(tmp_path), once=True)
    assert jobs.bodies(lake) == numbered(sent)
    assert take_all(server.url, "shop/out") == numbered(sent)
