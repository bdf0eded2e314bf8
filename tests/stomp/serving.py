"""A STOMP server on a real engine in the process of the test, and its peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.stomp.limits import Limits
from curbstone.stomp.server import StompServer
from tests.kit.engine_end import end_engine
from tests.stomp.client import Peer

A = QueueName("default", "a")
SUB = b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\n\n\0"


class Host(AsyncioHost):
    """Real time; `shift_ms` makes more of it pass."""

    shift_ms = 0

    def now_ms(self) -> int:
        """See `AsyncioHost.now_ms`."""
        return super().now_ms() + self.shift_ms


class World:
    """A server, its engine, and its peers."""

    def __init__(self, broker: Broker, host: Host, server: StompServer, address: tuple[str, int]) -> None:
        self.broker = broker
        self.host = host
        self.server = server
        self.address = address
        self.peers: list[Peer] = []

    async def peer(self, connect: bool = True) -> Peer:
        """Return a new peer, connected to the server."""
        peer = await Peer.open(self.address)
        self.peers.append(peer)
        if connect:
            assert (await peer.connect()).command == "CONNECTED"
        return peer

    def count(self, name: QueueName = A) -> int:
        """Return how many messages a queue holds, 0 if there is no such queue."""
        if name not in [queue.name for queue in self.broker.queues()]:
            return 0
        counts = self.broker.get(name).counts()
        return counts.rdy + counts.wip + counts.delayed

    async def close(self) -> None:
        """Close all peers, the server and the engine."""
        for peer in self.peers:
            await peer.close()
        await self.server.stop()
        await end_engine(self.broker, self.host)


@asynccontextmanager
async def serving(
    path: Path, options: QueueOptions | None = None, limits: Limits | None = None
) -> AsyncIterator[World]:
    """Run a server on the data in `path`."""
    host = Host(asyncio.get_running_loop())
    broker = Broker.open(host, OsDisk(path), defaults=options or QueueOptions(), sync=SyncMode.parse("always"))
    server = StompServer(OpenAuthenticator(broker, host), host, limits=limits)
    world = World(broker, host, server, await server.start(("127.0.0.1", 0)))
    try:
        yield world
    finally:
        await world.close()


def run(
    path: Path,
    *tests: Callable[[World], Awaitable[None]],
    options: QueueOptions | None = None,
    limits: Limits | None = None,
) -> None:
    """Run each test on a server of its own life, all on the same data."""

    async def main() -> None:
        for test in tests:
            async with serving(path, options, limits) as world:
                await test(world)

    asyncio.run(main())
