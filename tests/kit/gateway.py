"""A gateway with the real engine behind it, listening on a free port, in the loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.core.options import QueueOptions
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from tests.kit.engine import engine

QUEUE = "/v2/p1/queues/q"
MESSAGES = QUEUE + "/messages"


class Running:
    """What a test needs of it: an HTTP client, WebSockets, raw connections, and the engine."""

    def __init__(
        self, broker: Broker, server: GatewayServer, address: tuple[str, int], http: httpx.AsyncClient
    ) -> None:
        self.broker = broker
        self.server = server
        self.address = address
        self.http = http

    def socket(self, protocol: str, query: str = "", path: str = MESSAGES, origin: str | None = None) -> connect:
        """Return a WebSocket to be; an async context manager."""
        return connect(
            f"ws://{self.address[0]}:{self.address[1]}{path}{query}",
            subprotocols=[Subprotocol(name) for name in protocol.split(",") if name],
            origin=Origin(origin) if origin else None,
            compression=None,
            proxy=None,
        )

    async def raw(self, request: bytes) -> bytes:
        """Send bytes, and return the response up to the close by the server."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        reply = await reader.read()
        writer.close()
        return reply

    async def raw_socket(
        self, query: str, protocol: str = "consume"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a WebSocket without a client library; the reader is at the first frame."""
        reader, writer = await asyncio.open_connection(*self.address)
        lines = [f"GET {MESSAGES}{query} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        writer.write("\r\n".join([*lines, f"Sec-WebSocket-Protocol: {protocol}", "", ""]).encode())
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def publish(self, *bodies: bytes | str, **headers: str) -> None:
        """Publish over HTTP."""
        for body in bodies:
            reply = await self.http.post(MESSAGES, content=body, headers=headers)
            assert reply.status_code == 201, reply.text

    async def pop_all(self) -> list[bytes]:
        """Take everything over HTTP."""
        bodies = []
        while (reply := await self.http.delete(MESSAGES)).status_code == 200:
            bodies.append(reply.content)
        assert reply.status_code == 204
        return bodies

    async def polling(self, count: int) -> None:
        """Wait until that many requests wait for a message."""
        async with asyncio.timeout(60):
            while self.server.app.gateway.polls.count != count:
                await self.http.get("/healthz")

    async def counts(self) -> tuple[int, int, int]:
        """Return rdy, wip and delayed of the queue."""
        info = (await self.http.get(QUEUE)).json()
        return info["rdy"], info["wip"], info["delayed"]

    async def dead_letter(self) -> dict[str, Any]:
        """Wait until there is one message in p1/dead; return it."""
        messages: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while not messages:
                messages = (await self.http.get("/v2/p1/queues/dead/messages")).json()["messages"]
        assert len(messages) == 1
        return messages[0]


async def json_from(socket: ClientConnection) -> Any:
    """Return the JSON of the next message."""
    return orjson.loads(await socket.recv(decode=False))


@asynccontextmanager
async def running(data_dir: Path, settings: GatewaySettings, options: QueueOptions) -> AsyncIterator[Running]:
    """Run a gateway; the queue p1/q exists."""
    async with engine(data_dir, options) as (broker, host):
        server = GatewayServer(create_app(OpenAuthenticator(broker, host), host, settings))
        address = await server.start(("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", trust_env=False, timeout=60) as http:
            assert (await http.put(QUEUE)).status_code == 201
            yield Running(broker, server, address, http)
        await server.stop()
