"""Fixtures: a real RabbitMQ node, and the judge of histories."""

from __future__ import annotations

import pytest

from tests.engines.conftest import node_url
from tests.histories.judge import Judge

__all__ = ["judge", "node_url"]


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("histories"))
