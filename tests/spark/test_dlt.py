"""The dlt source, loaded into DuckDB."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import group_of, make_queue, numbered, publish

PACKAGES = Path(sys.prefix) / "spark-dlt"
PROGRAM = Path(__file__).with_name("dlt_load.py")
QUEUE = "shop/kept"


def test_each_run_loads_new_messages_and_acks_loaded_ones(server: ServerProcess, tmp_path: Path) -> None:
    if not PACKAGES.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("dlt is missing; `make spark-deps` installs it")
    make_queue(server.url, QUEUE)
    database, folder = tmp_path / "base.duckdb", tmp_path / "state"

    def load() -> tuple[int, int, str, bytes]:
        running = jobs.start(str(PROGRAM), server.url, QUEUE, str(database), str(folder), also=PACKAGES)
        count, distinct, headers, body = ast.literal_eval(jobs.run(running).splitlines()[-1])
        return count, distinct, headers, body

    publish(server.url, QUEUE, numbered(30), **{"x-msg-x-lang": "de"})
    assert load() == (30, 30, '{"lang": "de"}', b"message 00000000")
    assert group_of(server.url, QUEUE, "dlt")["position"] == 1, "nothing is acked before it is known to be loaded"
    publish(server.url, QUEUE, numbered(10, 30), **{"x-msg-x-lang": "de"})
    shutil.rmtree(folder)  # the state is in the destination, too
    assert load()[:2] == (40, 40)
    assert group_of(server.url, QUEUE, "dlt")["position"] == 31
    assert load()[:2] == (40, 40)
    assert group_of(server.url, QUEUE, "dlt")["position"] == 41
