"""What the engine was asked for, and an engine that refuses; both replace parts of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.engine.queue import Queue
from curbstone.core.errors import CurbstoneError
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from tests.stomp.harness import Client, Refuse
from tests.stomp.serving import World, serving


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that replace parts of the engine."""
    for item in items:
        if {"calls", "refuse"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("source")


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
    async with serving(tmp_path, options, limits) as opened:
        yield opened


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The publishes and settles that the engine was asked for: what, the queue, and the bodies or seqs."""
    made: list[tuple[Any, ...]] = []

    def note(owner: type[Any], name: str, of: Callable[..., tuple[Any, ...]]) -> None:
        original = getattr(owner, name)

        def call(self: Any, what: Any, *rest: Any, **more: Any) -> Any:
            how = [each for each in rest if isinstance(each, str | int | None)]  # not what is called at the end
            made.append((name, *of(self, what), *how))
            return original(self, what, *rest, **more)

        monkeypatch.setattr(owner, name, call)

    note(Queue, "publish", lambda queue, messages: (queue.name.queue, [message.body for message in messages]))
    for name in ("ack", "nack", "reject"):
        note(Consumer, name, lambda consumer, seqs: (consumer.queue.name.queue, list(seqs)))
    return made


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """A function that makes the queue of a name refuse what is published to it from now on; with None, no longer."""
    refusals: dict[str, CurbstoneError] = {}
    original = Queue.publish

    def publish(self: Queue, messages: Any, on_done: Any, **more: Any) -> None:
        if error := refusals.get(self.name.queue):
            self.host.call_soon(lambda: on_done(error, 0, len(messages)))
        else:
            original(self, messages, on_done, **more)

    def refuse(name: str, error: CurbstoneError | None) -> None:
        if error is None:
            del refusals[name]
        else:
            refusals[name] = error

    monkeypatch.setattr(Queue, "publish", publish)
    return refuse
