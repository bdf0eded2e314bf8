"""Fixtures: the worlds that an engine is tested in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from curbstone.core.port import Queue
from tests.engines.worlds import LocalWorld, ModelWorld, NodeWorld, TracedWorld, World
from tests.kit import rabbitmq


@pytest.fixture(scope="session")
def node_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real node that all tests share."""
    if (why := rabbitmq.missing()) and not os.environ.get("CURBSTONE_REQUIRE_RABBITMQ"):
        pytest.skip(why)
    base = tmp_path_factory.getbasetemp()
    with rabbitmq.shared_node(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as url:
        yield url


@pytest.fixture(scope="session")
def node_world(node_url: str) -> Iterator[NodeWorld]:
    """A gateway on the real node; each test makes queues of its own."""
    world = NodeWorld(node_url)
    yield world
    world.close()


@pytest.fixture(params=["local", "traced", "model", "node"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "node":
        yield request.getfixturevalue("node_world")
        return
    worlds: dict[str, type[LocalWorld | ModelWorld]] = {"local": LocalWorld, "traced": TracedWorld, "model": ModelWorld}
    made = worlds[request.param]()
    yield made
    made.close()


@pytest.fixture
def queue(world: World) -> Queue:
    return world.queue()


@pytest.fixture(params=["model", "node"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ModelWorld | NodeWorld]:
    """The engine on a cluster, of the model and real."""
    if request.param == "node":
        yield request.getfixturevalue("node_world")
        return
    made = ModelWorld()
    yield made
    made.close()


@pytest.fixture
def model() -> Iterator[ModelWorld]:
    """The engine on the model alone, with its switches."""
    made = ModelWorld()
    yield made
    made.model.is_down = made.model.loses_confirms = False
    made.model.refuses = 0
    made.close()
