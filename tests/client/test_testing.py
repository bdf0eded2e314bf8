"""The fixtures for tests of applications, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.server import clean_environment

CONFTEST = 'pytest_plugins = ["curbstone_client.testing"]\n'

TESTS = """
import pytest
from curbstone_client.sync import Client


@pytest.fixture
def orders(curbstone_server, curbstone_project):
    with Client(curbstone_server.url, project=curbstone_project) as client:
        yield client.declare("orders")


def test_an_order_is_stored(orders):
    orders.publish({"total": 12})
    assert orders.info()["rdy"] == 1


def test_nothing_is_left_of_another_test(orders):
    assert orders.info()["rdy"] == 0


def test_the_application_outlives_a_crash_of_the_server(curbstone_server, orders):
    orders.publish("before")
    curbstone_server.kill()
    sent = orders.send("meanwhile")
    curbstone_server.start()
    sent.result(60)
    assert orders.info()["rdy"] == 2


def test_over_tcp_too(curbstone_server, curbstone_project):
    with Client([curbstone_server.stomp_url, curbstone_server.url], project=curbstone_project) as client:
        client.queue("orders").publish("x")
        with next(client.queue("orders").consume()):
            pass
        client.settled("orders")
"""


def test_testing_fixtures_run_a_real_server(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_application.py").write_text(TESTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "4 passed" in done.stdout, done.stdout + done.stderr
