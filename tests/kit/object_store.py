"""A server that speaks S3, for tests: moto's, which has a folder of its own (tests/spark/install.sh brings it)."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGES = Path(sys.prefix) / "spark-s3"
PROGRAM = Path(__file__).parents[1] / "spark" / "s3.py"


@contextmanager
def object_store(log: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Run one with a bucket; yield the variables that say where it is and who asks."""
    if not PACKAGES.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("there is no server that speaks S3; `make spark-deps` brings it")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env=os.environ | {"PYTHONPATH": str(PACKAGES)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
        )  # fmt: skip
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert url, log.read_text()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=120) as reply:
            assert reply.status == 200
        yield {
            **{"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"},
            **{"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        }
    finally:
        process.communicate(timeout=120)
