"""An archive, its lake and the server on a file system whose power is cut: no acked message is missing in the lake."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from curbstone.core.disk import make_directory
from tests.crash.test_real_file import seed_of_run
from tests.kit.server import ServerProcess
from tests.power.volumes import Volatile, needs_fuse, volatile
from tests.spark import jobs
from tests.spark.kit import make_queue, missing, numbered, publish

QUEUE = "shop/kept"
ICEBERG = Path(sys.prefix) / "spark-iceberg"
READ_ICEBERG = """
import sys
from pyiceberg.table import StaticTable

bodies = StaticTable.from_metadata(sys.argv[1]).scan().to_arrow().column("body").to_pylist()
print(*sorted(body.decode() for body in bodies), sep="\\n")
"""
MESSAGES, BATCH = 30, 10
WRITES_MAX = 30
"""About how many times an archive of so many messages writes."""
needs_lake = pytest.mark.skipif(bool(missing()), reason=missing())


def archive_through_cuts(tmp_path: Path, cuts: int, seed: int) -> None:
    """Cut the power so many times while a queue is archived, and compare what is in the lake with what was sent."""
    rng = random.Random(seed)
    torn = 0
    with volatile(tmp_path, random.Random(seed)) as volume:
        lake = volume.directory / "lake"
        if ICEBERG.is_dir():
            make_directory(lake / "iceberg")
        with ServerProcess(volume.directory / "data", "--log-level=warning", log_file=tmp_path / "log") as server:
            make_queue(server.url, QUEUE)
            for cut in range(cuts):
                publish(server.url, QUEUE, numbered(MESSAGES, cut * MESSAGES))
                volume.stop_at_write(rng.randrange(1, WRITES_MAX))
                torn += cut_power(volume, server, archive(server, lake))
                server.restart()
            jobs.run(archive(server, lake))
        sent = numbered(cuts * MESSAGES)
        assert jobs.bodies(lake) == sent
        if ICEBERG.is_dir():
            found = jobs.run(jobs.start("-c", READ_ICEBERG, f"{lake}/iceberg/messages", also=ICEBERG))
            assert found.splitlines() == sent
        print(f"cuts: {cuts}, in the middle of a write: {torn}, files hurt: {volume.files_hurt}")
        assert volume.files_hurt or volume.entries_lost, "no cut lost anything"


def archive(server: ServerProcess, lake: Path) -> subprocess.Popen[str]:
    words = (QUEUE, "--once", "--journal", "--max-per-batch", str(BATCH), "--server", server.url, "--lake", str(lake))
    return jobs.start("-m", "curbstone.spark.archive", *words, also=ICEBERG if ICEBERG.is_dir() else None)


def cut_power(volume: Volatile, server: ServerProcess, running: subprocess.Popen[str]) -> bool:
    """Wait for the write that stops, or for the end of the archive, and cut. Return whether a write was stopped."""
    while running.poll() is None and not volume.wait_until_stopped(0.1):
        pass
    is_torn = volume.wait_until_stopped(0)
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    server.process.kill()
    volume.let_fail()
    running.communicate()
    server.kill()
    volume.cut()
    return is_torn


@needs_fuse
@needs_lake
def test_a_lake_survives_power_cuts(tmp_path: Path) -> None:
    seed = seed_of_run()
    print(f"CURBSTONE_CRASH_SEED={seed}")
    archive_through_cuts(tmp_path, cuts=2, seed=seed)


@needs_fuse
@needs_lake
@pytest.mark.soak
def test_lakes_survive_many_power_cuts(tmp_path: Path) -> None:
    for number in range(7):  # a lake of many small files is slow on this file system
        seed = seed_of_run()
        print(f"CURBSTONE_CRASH_SEED={seed}")
        parent = tmp_path / str(number)
        parent.mkdir()
        archive_through_cuts(parent, cuts=3, seed=seed)
