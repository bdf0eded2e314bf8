"""SIGKILL of driver and server in the middle: everything arrives, and once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import call, group_of, make_queue, numbered, publish

QUEUE = "shop/in"
COPYING = str(Path(__file__).with_name("copying.py"))


def archive(server: ServerProcess, lake: Path, *more: str) -> Any:
    target = ("--server", server.url, "--lake", str(lake), "--max-per-batch", "200", "--every", "0")
    return jobs.job("archive", QUEUE, *target, *more)


def test_an_archive_is_exact_after_kills_of_server_and_driver(server: ServerProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make_queue(server.url, QUEUE)
    publish(server.url, QUEUE, numbered(2000))
    running = archive(server, lake)
    jobs.until(lambda: jobs.batches(lake) >= 2, running)
    server.restart(same_ports=True)  # SIGKILL, then on the same data
    publish(server.url, QUEUE, numbered(1000, 2000))
    seen = jobs.batches(lake)
    jobs.until(lambda: jobs.batches(lake) > seen, running)
    jobs.kill(running)
    jobs.run(archive(server, lake, "--once"))
    assert jobs.bodies(lake) == numbered(3000)
    assert group_of(server.url, QUEUE, "archive")["position"] == 3001


def held(server: ServerProcess) -> int:
    count: int = call(server.url, "GET", "/v2/shop/queues/out")["rdy"]
    return count


def taken(server: ServerProcess) -> list[str]:
    """Take all there is in the queue written to."""
    found: list[str] = []
    while messages := call(server.url, "POST", "/v2/shop/queues/out/messages/lease", {"count": 1000})["messages"]:
        found += [message["message"] for message in messages]
    return found


def test_a_stream_into_a_queue_is_exact_after_a_kill_of_the_driver(server: ServerProcess, tmp_path: Path) -> None:
    make_queue(server.url, QUEUE)
    make_queue(server.url, "shop/out")
    publish(server.url, QUEUE, numbered(1500))
    running = jobs.start(COPYING, server.url, str(tmp_path / "check"), "on")
    jobs.until(lambda: held(server) >= 300, running)
    jobs.kill(running)
    jobs.run(jobs.start(COPYING, server.url, str(tmp_path / "check"), "once"))
    assert taken(server) == numbered(1500)


@pytest.mark.soak
def test_many_kills_of_both_change_nothing(server: ServerProcess, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    lake, check = tmp_path / "lake", str(tmp_path / "check")
    make_queue(server.url, QUEUE, cap="256MiB")
    make_queue(server.url, "shop/out", cap="256MiB")
    sent = 0
    for _ in range(8):
        publish(server.url, QUEUE, numbered(2000, sent))
        sent += 2000
        both = [archive(server, lake), jobs.start(COPYING, server.url, check, "on")]
        batches, copied = jobs.batches(lake) + dice.randrange(1, 5), held(server) + dice.randrange(1, 900)
        jobs.until(lambda batches=batches: jobs.batches(lake) >= batches, both[0])  # type: ignore[misc]
        if dice.random() < 0.5:
            server.restart(same_ports=True)
        jobs.until(lambda copied=copied: held(server) >= copied, both[1])  # type: ignore[misc]
        for running in both:
            jobs.kill(running)
    jobs.run(archive(server, lake, "--once"))
    jobs.run(jobs.start(COPYING, server.url, check, "once"))
    assert jobs.bodies(lake) == numbered(sent)
    assert taken(server) == numbered(sent)
