"""An engine on a real directory in the loop of the test, servers of protocols over TCP on it, and their clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.net.tcp import TcpServer

WAIT_S = 60

A = QueueName("default", "a")


class Host(AsyncioHost):
    """Real time; `shift_ms` makes more of it pass."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


@asynccontextmanager
async def engine(
    path: Path, options: QueueOptions | None = None, *, sync: str = "never", threads: int = 2
) -> AsyncIterator[tuple[Broker, Host]]:
    """Run an engine; at the end it is shut down in order, and its threads finish."""
    host = Host(asyncio.get_running_loop(), threads)
    broker = Broker.open(host, OsDisk(path), defaults=options or QueueOptions(), sync=SyncMode.parse(sync))
    try:
        yield broker, host
    finally:
        await end_engine(broker, host)


async def end_engine(broker: Broker, host: AsyncioHost) -> None:
    """Shut an engine down in order, and let its threads finish."""
    stopped = asyncio.Event()
    broker.shutdown(stopped.set)
    await asyncio.wait_for(stopped.wait(), WAIT_S)
    host.close()


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something that the turns of the loop bring about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


class Peer:
    """A raw client over TCP; each protocol has a subclass."""

    buffer_bytes = 64 * 1024
    """How much it reads ahead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Self:
        """Connect."""
        return cls(*await asyncio.open_connection(*address, limit=cls.buffer_bytes))

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


P = TypeVar("P", bound=Peer)
S = TypeVar("S", bound=TcpServer)


class World(Generic[S, P]):
    """A server, its engine, and its peers, which are closed at the end."""

    def __init__(self, broker: Broker, host: Host, server: S, kind: type[P]) -> None:
        self.broker = broker
        self.host = host
        self.server = server
        self.address = ("", 0)
        self.peers: list[P] = []
        self._kind = kind

    async def open(self) -> P:
        """Return a new peer."""
        peer = await self._kind.open(self.address)
        self.peers.append(peer)
        return peer

    def count(self, name: QueueName = A) -> int:
        """Return how many messages a queue holds, 0 if there is no such queue."""
        if name not in [queue.name for queue in self.broker.queues()]:
            return 0
        counts = self.broker.get(name).counts()
        return counts.rdy + counts.wip + counts.delayed


W = TypeVar("W", bound=World[Any, Any])


@asynccontextmanager
async def serving(
    path: Path, options: QueueOptions | None, world_of: Callable[[Broker, Host], W], *, sync: str = "never"
) -> AsyncIterator[W]:
    """Run a server on the data in `path`."""
    async with engine(path, options, sync=sync) as (broker, host):
        world = world_of(broker, host)
        world.address = await world.server.start(("127.0.0.1", 0))
        try:
            yield world
        finally:
            for peer in world.peers:
                await peer.close()
            await world.server.stop()


def run(opened: Callable[[], AbstractAsyncContextManager[W]], *tests: Callable[[W], Awaitable[None]]) -> None:
    """Run each test on a server of its own life."""

    async def main() -> None:
        for test in tests:
            async with opened() as world:
                await test(world)

    asyncio.run(main())
