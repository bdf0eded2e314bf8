"""The server that most tests of MQKS use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mqks.world import World, serving


@pytest.fixture
async def world(anyio_backend: object, tmp_path: Path) -> AsyncIterator[World]:
    """A running server with an empty data directory."""
    async with serving(tmp_path / "data") as opened:
        yield opened
