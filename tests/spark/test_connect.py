"""Spark Connect. What it needs beside the extra `spark` is large, so it has a folder of its own: see install.sh."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.kit.server import ServerProcess
from tests.spark import jobs
from tests.spark.kit import make_queue

PROGRAM = Path(__file__).with_name("connect.py")
PACKAGES = Path(sys.prefix) / "spark-connect"


@pytest.mark.soak
def test_the_source_works_over_spark_connect(server: ServerProcess, tmp_path: Path) -> None:
    assert PACKAGES.is_dir(), "`make spark-deps` installs what Spark Connect needs"
    make_queue(server.url, "shop/in")
    make_queue(server.url, "shop/out")
    running = jobs.start(str(PROGRAM), server.url, str(tmp_path), also=PACKAGES)
    found = json.loads(jobs.run(running).splitlines()[-1])
    assert found.pop("session").startswith("pyspark.sql.connect")
    assert "shop/none" in found.pop("error")
    assert found == {
        "written": 100,
        "copied": 100,
        "archived": 100,
    }
