"""An MQKS server on the real engine in the loop of the test, and clients that read line by line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.mqks.limits import Limits
from curbstone.mqks.server import MqksServer
from tests.kit import engine
from tests.kit.engine import WAIT_S, wait_until

ERROR_ID = re.compile(r"\d{20}[0-9A-Za-z]{4}")
MIB = 1024 * 1024


class Peer(engine.Peer):
    """A client that reads lines."""

    buffer_bytes = 4 * MIB

    def send(self, *lines: str) -> None:
        self.writer.write("".join([line + "\n" for line in lines]).encode())

    async def line(self) -> str:
        """Return the next line without its LF; "" at the end."""
        return (await asyncio.wait_for(self.reader.readline(), WAIT_S)).decode().removesuffix("\n")

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def request(self, *lines: str) -> str:
        """Send requests and return the next line."""
        self.send(*lines)
        return await self.line()

    async def confirm(self, *lines: str) -> None:
        """Send requests, of which each is answered with nothing but its ok."""
        for line in lines:
            assert await self.request(line) == f"{line.split(' ')[0]} ok "

    async def error(self, *lines: str) -> str:
        """Send requests and return the id of whom the error that comes is for."""
        request_id, word, error_id = (await self.request(*lines)).split(" ")
        assert word == "error"
        assert ERROR_ID.fullmatch(error_id)
        return request_id

    async def quiet(self) -> None:
        """Nothing more has come, and the connection is alive."""
        assert await self.request("quiet ping ?") == "quiet ok ?"


class World(engine.World[MqksServer, Peer]):
    """What a test needs of the server, and its clients."""

    def __init__(self, limits: Limits | None, broker: Broker, host: engine.Host) -> None:
        server = MqksServer(OpenAuthenticator(broker, host), host, limits=limits or Limits())
        super().__init__(broker, host, server, Peer)

    async def peer(self, *requests: str) -> Peer:
        """Connect, and send requests that are confirmed."""
        peer = await self.open()
        await peer.confirm(*requests)
        return peer

    async def leave(self, peer: Peer) -> None:
        """Close a client, and wait until the server knows."""
        sessions = len(self.server.registry.sessions)
        await peer.close()
        await wait_until(lambda: len(self.server.registry.sessions) < sessions)

    def has(self, queue: str) -> bool:
        return any(found.name == QueueName("default", queue) for found in self.broker.queues())

    def events(self, queue: str) -> set[str]:
        return set(self.broker.bindings(QueueName("default", queue)))


def serving(
    path: Path, limits: Limits | None = None, options: QueueOptions | None = None
) -> AbstractAsyncContextManager[World]:
    """Run a server on the data in `path`."""
    return engine.serving(path, options, partial(World, limits))


def run(
    path: Path,
    *tests: Callable[[World], Awaitable[None]],
    limits: Limits | None = None,
    options: QueueOptions | None = None,
) -> None:
    """Run each test on a server of its own life, all on the same data."""
    engine.run(partial(serving, path / "data", limits, options), *tests)
