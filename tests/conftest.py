"""Fixtures for all tests, and how they are dealt to workers. What tests share is in tests/kit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import websockets.asyncio.client
import websockets.sync.client
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from curbstone_client.base import ClientBase
from tests.kit.lab import Lab
from tests.kit.server import ServerProcess

HERE = Path(__file__).parent
FIRST = (
    "spark",
    "sim",
    "faults",
    "bench",
    "crash",
    "standby",
    "sdk",
    "backup",
    "cluster",
    "interop",
    "interop_http",
    "client",
)
"""What takes long, in order. Begun first, so that no worker is left with it at the end."""

SHARE_JAVA = {
    f"tests/spark/test_{name}.py"
    for name in ("class_archive", "jobs", "kill", "outbox", "secure", "sink", "source", "stream")
}  # fmt: skip
"""The files that use the fixture `spark`, a Java process which takes long to start: one worker runs all of them."""
SHARE_BROWSER = "tests/interop_http/"
"""The folder whose files use `tests.kit.browser`: one worker runs all of them, for the same reason."""

# Several processes share two cores and the time of an example says nothing; a failure prints how to repeat it.
hypothesis.settings.register_profile(
    "curbstone", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("curbstone")

# Each client of httpx reads all the authorities of the web, which takes longer than most requests here.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # type: ignore[attr-defined]

# Nor do the 5 seconds after which httpx gives up where nothing else is said: a sync of a busy disk can take longer.
for phase in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, 60.0)

# Nor the 10 seconds of websockets and of our own client, nor the 20 after which websockets misses a pong.
SLOWER: list[tuple[Any, dict[str, float]]] = [
    (websockets.sync.client.connect, {"open_timeout": 60, "ping_timeout": 60}),
    (websockets.asyncio.client.connect.__init__, {"open_timeout": 60, "ping_timeout": 60}),
    (ClientBase.__init__, {"connect_timeout": 60}),
]
for function, seconds in SLOWER:
    assert seconds.keys() <= function.__kwdefaults__.keys()
    function.__kwdefaults__.update(seconds)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path.relative_to(HERE)))


def _rank(path: Path) -> int:
    return FIRST.index(path.parts[0]) if path.parts[0] in FIRST else len(FIRST)


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, not each time among all tests."""
    gc.collect()
    gc.freeze()


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Keeps the tests of a file in one worker, for what they share, and those that share Java or a browser."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = nodeid.split("::", 1)[0]
        if file.startswith(SHARE_BROWSER):
            return SHARE_BROWSER
        return "tests/spark" if file in SHARE_JAVA else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Return what deals the tests to the workers."""
    return ByFile(config, log)


@pytest.fixture
def anyio_backend() -> str:
    """What asynchronous tests run on, unless their folder or file says more."""
    return "asyncio"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server with an empty data directory; the test also fails if it does not stop with code 0."""
    with ServerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def lab() -> Lab:
    """A broker on a simulated disk."""
    return Lab()
