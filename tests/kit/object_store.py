"""A server that speaks S3, for tests: moto's, which has a folder of its own (tests/spark/install.sh brings it)."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

PACKAGES = Path(sys.prefix) / "spark-s3"
PROGRAM = Path(__file__).parents[1] / "spark" / "s3.py"


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """Provide a store with an empty bucket and nothing else; yield the variables that say where it is and who asks."""
    if not PACKAGES.is_dir() and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
        pytest.skip("there is no server that speaks S3; `make spark-deps` brings it")
    url = _start()
    for method, path in (("POST", "moto-api/reset"), ("PUT", bucket)):
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", method=method), timeout=120) as reply:
            assert reply.status == 200
    yield {
        **{"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"},
        **{"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
    }


@cache
def _start() -> str:
    """Start the server of this process, which ends with it; return its address."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env=os.environ | {"PYTHONPATH": str(PACKAGES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate, timeout=120)
    assert process.stdout
    url = process.stdout.readline().strip()
    assert url, "the server that speaks S3 did not start"
    return url
