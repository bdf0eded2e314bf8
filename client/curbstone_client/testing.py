"""Fixtures for tests of applications: a real server in a temporary directory. They need pytest and `curbstone`.

In a `conftest.py`::

    pytest_plugins = ["curbstone_client.testing"]

`curbstone_server` is one server for all tests of a run. `curbstone_project` is the name of a new project for each test,
so that tests do not see the queues of others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

STOP_S_MAX = 30


class Server:
    """A `curbstone serve` process on free ports of this machine."""

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        """Start the server, with its data in `directory`. It listens when this returns.

        `options` are added to its command line, such as `--cap=1MiB`.
        """
        self._directory = directory
        self._options = options
        self._addresses: dict[str, str] = {}
        self._start()

    @property
    def url(self) -> str:
        """The URL for `Client`."""
        return f"http://{self._addresses['http']}"

    @property
    def stomp_url(self) -> str:
        """The URL of STOMP over TCP."""
        return f"stomp://{self._addresses['stomp']}"

    def kill(self) -> None:
        """Kill the server, like a crash."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Stop the server, like an operator."""
        self._process.terminate()
        self._end()

    def start(self) -> None:
        """Restart the server after `kill` or `stop`, with the same data and at the same addresses."""
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "curbstone"] if find_spec("curbstone") else ["curbstone"]
        addresses = {name: self._addresses.get(name, "127.0.0.1:0") for name in ("http", "stomp", "mqks")}
        listeners = [f"--{name}-addr={address}" for name, address in addresses.items()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CURBSTONE_")}
        log = self._directory / "server.log"
        with log.open("ab") as written:
            self._process = subprocess.Popen(
                [*command, "serve", "--data", str(self._directory / "data"), *listeners, *self._options],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=written, env=environment, cwd=self._directory,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line:
            self._end()
            raise RuntimeError(f"the server did not start:\n{log.read_text(encoding='utf-8', errors='replace')}")
        self._addresses = dict(word.split("=", 1) for word in line.split()[2:])

    def _end(self) -> None:
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None


@pytest.fixture(scope="session")
def curbstone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a run. A test that kills it must start it again."""
    server = Server(tmp_path_factory.mktemp("curbstone"))
    yield server
    if server.is_running:
        server.stop()


@pytest.fixture
def curbstone_project() -> str:
    """The name of a project that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
