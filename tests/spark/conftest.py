"""One quiet Spark session for all tests here, two cores and half a gigabyte, and one server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARE_JAVA
from tests.kit.server import ServerProcess
from tests.spark.kit import LOCAL, call, missing, spark_environment

PROJECTS = ("shop",)
"""Where the tests here keep their queues."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark, and leave it out, with the reason, where Spark can't run on a developer's machine."""
    here = Path(__file__).parent
    reason = missing()
    users = {item.nodeid.partition("::")[0] for item in items if "spark" in getattr(item, "fixturenames", ())}
    assert users <= SHARE_JAVA, f"name {users - SHARE_JAVA} in SHARE_JAVA, so that no other worker starts Java"
    for item in items:
        if item.path.parent != here:
            continue
        item.add_marker("spark")
        if reason and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    reason = missing()
    assert not reason, reason
    from curbstone.spark import session

    os.environ.update(spark_environment())
    with session.session("tests", more=LOCAL) as opened:
        opened.sparkContext.setLogLevel("OFF")
        yield opened


@pytest.fixture(scope="session")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this process: it would take longer to start than most tests here."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture
def server(lasting_server: ServerProcess) -> Iterator[ServerProcess]:
    """A running server without queues. What it remembers of transactions stays, so their ids differ between tests."""
    if lasting_server.process.poll() is not None:
        lasting_server.restart()
    yield lasting_server
    if lasting_server.process.poll() is None:
        for project in PROJECTS:
            for queue in call(lasting_server.url, "GET", f"/v2/{project}/queues")["queues"]:
                call(lasting_server.url, "DELETE", f"/v2/{project}/queues/{queue['name']}")
