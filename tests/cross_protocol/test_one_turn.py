"""A connection that consumes from many queues holds no more than its bound of what they deliver in one turn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.options import MIB, QueueOptions
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import binary_frame, text_frame
from curbstone.mqks.server import MqksServer
from curbstone.net.limits import TURN_OUTPUT_BYTES_MAX
from curbstone.stomp.server import StompServer
from curbstone.stomp.websocket import StompSockets
from tests.kit.engine import WAIT_S, engine, wait_until

pytestmark = pytest.mark.anyio

QUEUES = [QueueName("default", f"q{number}") for number in range(16)]
BODY = b"~" * 100_000
EACH_HAS = 10
STOMP = "CONNECT\naccept-version:1.2\nhost:x\n\n\0" + "".join(
    [f"SUBSCRIBE\nid:{name.queue}\ndestination:/queue/{name.queue}\nack:client\n\n\0" for name in QUEUES]
)
MQKS = "".join([f"{name.queue} consume {name.queue} --manual-ack\n" for name in QUEUES])
HANDSHAKE = """GET /stomp HTTP/1.1
Host: localhost
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

""".replace("\n", "\r\n")


def masked(text: str) -> bytes:
    """Return a text message of a WebSocket's client, masked with zeros."""
    data = text.encode()
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


@asynccontextmanager
async def serving(path: Path, protocol: str) -> AsyncIterator[tuple[Broker, tuple[str, int], Callable[[], Any]]]:
    """Give the engine, the address that speaks a protocol, and a function that returns its one connection."""
    async with engine(path, QueueOptions(cap=8 * MIB)) as (broker, host):
        authenticator = OpenAuthenticator(broker, host)
        server: StompServer | MqksServer | GatewayServer
        if protocol == "websocket":
            sockets = StompSockets(authenticator, host, text=text_frame, binary=binary_frame)
            server = GatewayServer(
                create_app(authenticator, host, GatewaySettings(), more_sockets={"/stomp": sockets.open})
            )
        else:
            server = StompServer(authenticator, host) if protocol == "stomp" else MqksServer(authenticator, host)
        address = await server.start(("127.0.0.1", 0))

        def connection() -> Any:
            (found,) = server.clients
            return found

        try:
            yield broker, address, connection
        finally:
            await server.stop()


@pytest.mark.parametrize("protocol", ["stomp", "websocket", "mqks"])
async def test_slow_reader_is_paused_and_later_gets_everything(tmp_path: Path, protocol: str) -> None:
    """What all of its queues delivered in one turn waited in memory, whether or not the client read any of it."""
    async with serving(tmp_path, protocol) as (broker, address, connection):
        confirmed = 0

        def done(error: object, _first_seq: int, count: int) -> None:
            nonlocal confirmed
            assert error is None
            confirmed += count

        for name in QUEUES:
            broker.ensure(name).publish([Message(BODY) for _ in range(EACH_HAS)], done)
        await wait_until(lambda: confirmed == len(QUEUES) * EACH_HAS)
        reader, writer = await asyncio.open_connection(*address)
        if protocol == "websocket":
            writer.write(HANDSHAKE.encode())
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        else:
            await wait_until(lambda: _is_there(connection))
        server_side = connection()._transport
        server_side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        most = 0
        taken = server_side.write

        def write(data: bytes) -> None:
            nonlocal most
            taken(data)
            most = max(most, server_side.get_write_buffer_size())

        connection()._transport = _Watched(server_side, write)
        writer.write(
            MQKS.encode() if protocol == "mqks" else masked(STOMP) if protocol == "websocket" else STOMP.encode()
        )
        await wait_until(lambda: connection().is_full)
        came, all_of_it = 0, len(QUEUES) * EACH_HAS * len(BODY)
        while came < all_of_it:
            came += (await asyncio.wait_for(reader.read(MIB), WAIT_S)).count(BODY[:1])
        assert came == all_of_it
        assert most < TURN_OUTPUT_BYTES_MAX + MIB + 3 * len(BODY)
        writer.close()


class _Watched:
    """A transport whose writes are looked at."""

    def __init__(self, transport: asyncio.Transport, write: Callable[[bytes], None]) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _is_there(connection: Callable[[], Any]) -> bool:
    try:
        return connection() is not None
    except ValueError:
        return False
