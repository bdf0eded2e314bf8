"""One server for the tests of a file: a start takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture
def server(process: ServerProcess) -> Iterator[ServerProcess]:
    """It runs when a test begins, whatever the one before did to it, and has no queues."""
    if process.process.poll() is not None:
        process.restart()
    with httpx.Client(base_url=process.url, trust_env=False) as http:
        for project in http.get("/v2").json()["projects"]:
            for queue in http.get(f"/v2/{project['project']}/queues").json()["queues"]:
                assert http.delete(f"/v2/{project['project']}/queues/{queue['name']}").status_code == 204
    yield process
