"""Fixtures of the gateway's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from curbstone.core.options import QueueOptions
from curbstone.gateway.settings import GatewaySettings
from tests.kit.gateway import Running, running

LIMITED = GatewaySettings(max_message_size=65_536, cors_origins=("https://app.example",))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the server runs on where there is one; tests of sockets also take asyncio's own."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def gateway(anyio_backend: object, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose messages may have 64 KiB, with an empty queue p1/q."""
    async with running(tmp_path / "data", LIMITED, QueueOptions()) as it:
        yield it
