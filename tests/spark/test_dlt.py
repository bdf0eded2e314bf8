"""The dlt source, loaded into DuckDB."""

from __future__ import annotations

import ast
import os
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
    base = tmp_path / "base.duckdb"
    with jobs.start(str(PROGRAM), server.url, QUEUE, str(base), also=PACKAGES, reads=True) as running:

        def load(state: str) -> tuple[int, int, str, bytes]:
            assert running.stdin and running.stdout
            running.stdin.write(f"{tmp_path / state}\n")
            running.stdin.flush()
            line = running.stdout.readline()
            assert line, jobs.finish(running)
            count, distinct, headers, body = ast.literal_eval(line)
            return count, distinct, headers, body

        publish(server.url, QUEUE, numbered(30), **{"x-msg-x-lang": "de"})
        assert load("first") == (30, 30, '{"lang": "de"}', b"message 00000000")
        assert group_of(server.url, QUEUE, "dlt")["position"] == 1, "nothing is acked before it is known to be loaded"
        publish(server.url, QUEUE, numbered(10, 30), **{"x-msg-x-lang": "de"})
        assert load("second")[:2] == (40, 40), "the state is in the destination, too"
        assert group_of(server.url, QUEUE, "dlt")["position"] == 31
        assert load("second")[:2] == (40, 40)
        assert group_of(server.url, QUEUE, "dlt")["position"] == 41
        jobs.run(running)
