"""The server that most tests of MQKS use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from curbstone.core.options import QueueOptions
from curbstone.mqks.limits import Limits
from tests.mqks.world import World, serving


@pytest.fixture
def limits() -> Limits | None:
    """The limits of `world`, unless a test is parametrized with others."""
    return None


@pytest.fixture
def options() -> QueueOptions | None:
    """The default options of queues of `world`, likewise."""
    return None


@pytest.fixture
async def world(
    anyio_backend: object, tmp_path: Path, limits: Limits | None, options: QueueOptions | None
) -> AsyncIterator[World]:
    """A running server with an empty data directory."""
    async with serving(tmp_path / "data", limits, options) as opened:
        yield opened
