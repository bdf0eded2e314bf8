"""An MQKS server on the real engine in the loop of the test, and clients that read line by line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.mqks.limits import Limits
from curbstone.mqks.server import MqksServer
from tests.kit.engine_end import end_engine

WAIT_S = 60
ERROR_ID = re.compile(r"\d{20}[0-9A-Za-z]{4}")
MIB = 1024 * 1024


class Peer:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Peer:
        return cls(*await asyncio.open_connection(*address, limit=4 * MIB))

    def send(self, *lines: str) -> None:
        """Send requests."""
        self.writer.write("".join([line + "\n" for line in lines]).encode())

    async def line(self) -> str:
        """Return the next line without its LF; "" at the end."""
        return (await asyncio.wait_for(self.reader.readline(), WAIT_S)).decode().removesuffix("\n")

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def ask(self, *lines: str) -> str:
        """Send requests and return the next line."""
        self.send(*lines)
        return await self.line()

    async def confirm(self, *lines: str) -> None:
        """Send requests, of which each is answered with nothing but its ok."""
        for line in lines:
            assert await self.ask(line) == f"{line.split(' ')[0]} ok "

    async def error(self, *lines: str) -> str:
        """Send requests and return the id of whom the error that comes is for."""
        request_id, word, error_id = (await self.ask(*lines)).split(" ")
        assert word == "error"
        assert ERROR_ID.fullmatch(error_id)
        return request_id

    async def quiet(self) -> None:
        """Nothing more has come, and the connection is alive."""
        assert await self.ask("quiet ping ?") == "quiet ok ?"

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class Host(AsyncioHost):
    """Real time; `shift_ms` makes it pass."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


class World:
    """What a test needs of the server, and its clients."""

    def __init__(self, broker: Broker, host: Host, server: MqksServer, address: tuple[str, int]) -> None:
        self.broker = broker
        self.host = host
        self.server = server
        self.address = address
        self._peers: list[Peer] = []

    async def peer(self, *requests: str) -> Peer:
        """Connect, and send requests that are confirmed."""
        peer = await Peer.open(self.address)
        self._peers.append(peer)
        await peer.confirm(*requests)
        return peer

    async def leave(self, peer: Peer) -> None:
        """Close a client, and wait until the server knows."""
        sessions = len(self.server.registry.sessions)
        await peer.close()
        await until(lambda: len(self.server.registry.sessions) < sessions)

    def has(self, queue: str) -> bool:
        return any(found.name == QueueName("default", queue) for found in self.broker.queues())

    def events(self, queue: str) -> set[str]:
        return set(self.broker.bindings(QueueName("default", queue)))

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        await self.server.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the server's own turns bring about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(path: Path, limits: Limits, options: QueueOptions) -> AsyncIterator[World]:
    host = Host(asyncio.get_running_loop(), threads=2)
    broker = Broker.open(host, OsDisk(path), defaults=options, sync=SyncMode.parse("never"))
    server = MqksServer(OpenAuthenticator(broker, host), host, limits=limits)
    world = World(broker, host, server, await server.start(("127.0.0.1", 0)))
    try:
        yield world
    finally:
        await world.close()
        await end_engine(broker, host)


def run(
    path: Path,
    *tests: Callable[[World], Awaitable[None]],
    limits: Limits | None = None,
    options: QueueOptions | None = None,
) -> None:
    """Run each test on a server of its own life, all on the same data."""

    async def main() -> None:
        for test in tests:
            async with serving(path / "data", limits or Limits(), options or QueueOptions()) as world:
                await test(world)

    asyncio.run(main())
