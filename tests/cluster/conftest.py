"""Fixtures: gateways on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.gateway import GatewayProcess
from tests.engines.conftest import node_url

__all__ = ["gateway", "node_url", "two_gateways"]


@pytest.fixture(scope="module")
def gateway(node_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that the tests of a file share; it also has to stop with code 0."""
    process = GatewayProcess(tmp_path_factory.mktemp("gateway") / "one", node_url)
    with process:
        yield process


@pytest.fixture(scope="module")
def two_gateways(
    gateway: GatewayProcess, node_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """The same and another one on the same node."""
    other = GatewayProcess(tmp_path_factory.mktemp("gateway") / "two", node_url)
    with other:
        yield gateway, other
