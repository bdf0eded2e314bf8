"""Fixtures for all tests. Code that tests share is imported from modules such as tests.server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server with an empty data directory; the test also fails if it does not stop with code 0."""
    with ServerProcess(tmp_path / "data") as process:
        yield process
