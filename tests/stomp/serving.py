"""A STOMP server on a real engine in the process of the test, and its peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from curbstone.stomp.server import StompServer
from tests.kit import engine
from tests.stomp.client import Peer

SUB = b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\n\n\0"


class World(engine.World[StompServer, Peer]):
    """A server, its engine, and its peers."""

    def __init__(self, limits: Limits | None, broker: Broker, host: engine.Host) -> None:
        super().__init__(broker, host, StompServer(OpenAuthenticator(broker, host), host, limits=limits), Peer)

    async def peer(self, connect: bool = True) -> Peer:
        """Return a new peer, connected to the server."""
        peer = await self.open()
        if connect:
            assert (await peer.connect()).command == "CONNECTED"
        return peer


def serving(
    path: Path, options: QueueOptions | None = None, limits: Limits | None = None
) -> AbstractAsyncContextManager[World]:
    """Run a server on the data in `path`."""
    return engine.serving(path, options, partial(World, limits), sync="always")


def run(
    path: Path,
    *tests: Callable[[World], Awaitable[None]],
    options: QueueOptions | None = None,
    limits: Limits | None = None,
) -> None:
    """Run each test on a server of its own life, all on the same data."""
    engine.run(partial(serving, path, options, limits), *tests)
