"""Fixtures of the tests of access."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.world import World


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """An engine with the users of the test's module, `USERS`."""
    return World(tmp_path, request.module.USERS)
