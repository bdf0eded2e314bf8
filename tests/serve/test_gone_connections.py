"""A connection that is over leaves nothing to the garbage collector: all of it goes with its last reference.

Cycles of dead objects stay until a full collection, which holds everybody up; and what a burst of connections leaves
behind until then is memory that never returns.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.host import AsyncioHost
from curbstone.core.options import QueueOptions
from curbstone.gateway.settings import GatewaySettings
from curbstone.mqks.limits import Limits as MqksLimits
from curbstone.mqks.server import MqksServer
from curbstone.stomp.limits import Limits
from curbstone.stomp.server import StompServer
from tests.kit.gateway import MESSAGES, QUEUE, running

pytestmark = pytest.mark.anyio

Address = tuple[str, int]
TIMES = 5


class World(NamedTuple):
    """The listeners, and what tells how many are connected."""

    http: Address
    stomp: Address
    mqks: Address
    connected: Callable[[], int]


class Talk(NamedTuple):
    """What a client sends and what it waits for, in turn; then it closes."""

    to: str
    steps: tuple[tuple[bytes, bytes], ...]


def request(line: str, body: bytes = b"", *fields: str) -> bytes:
    return (
        "\r\n".join([line + " HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *fields, "", ""]).encode()
        + body
    )


def upgrade(subprotocol: str, path: str = MESSAGES) -> bytes:
    fields = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    fields += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Sec-WebSocket-Protocol: {subprotocol}"]
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


def frame(text: bytes) -> bytes:
    """Return a text frame of a client, masked by zeros."""
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/queue/p1/q\nack:client\n\n\0"
SEND = b"SEND\ndestination:/queue/p1/q\nreceipt:sent\n\nabc\0"
TRANSACTION = (
    b"BEGIN\ntransaction:t\n\n\0SEND\ntransaction:t\ndestination:/queue/p1/q\n\nabc\0"
    b"COMMIT\ntransaction:t\nreceipt:all\n\n\0"
)
HEAD = b"\r\n\r\n"

TALKS = {
    "http": Talk("http", ((request(f"POST {MESSAGES}", b"abc"), b"201"), (request(f"DELETE {MESSAGES}"), b"abc"))),
    "an error over http": Talk("http", ((request("GET /v2/p1/queues/none"), b"404"), (b"nonsense\r\n\r\n", b"400"))),
    "a refused head": Talk("http", ((b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),)),
    "a refused target": Talk("http", ((b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),)),
    "a poll": Talk("http", ((request(f"DELETE {QUEUE}2/messages?wait=60"), b""),)),
    "a stream": Talk("http", ((request(f"GET {MESSAGES}", b"", "Accept: text/event-stream"), HEAD),)),
    "a producer": Talk("http", ((upgrade("publish"), HEAD),)),
    "a consumer": Talk("http", ((upgrade("consume"), HEAD),)),
    "several queues": Talk(
        "http",
        (
            (upgrade("queues", "/v2/p1/queues"), HEAD),
            (frame(b'{"subscribe":"q","ack":true}') + frame(b'{"publish":"q","message":"abc"}'), b"abc"),
        ),
    ),
    "stomp": Talk("stomp", ((CONNECT, b"CONNECTED"), (SUBSCRIBE + SEND, b"receipt-id:sent"))),
    "a transaction": Talk("stomp", ((CONNECT, b"CONNECTED"), (TRANSACTION, b"receipt-id:all"))),
    "an error over stomp": Talk("stomp", ((CONNECT, b"CONNECTED"), (b"NONSENSE\n\n\0", b"ERROR"))),
    "mqks": Talk("mqks", ((b"c consume --confirm q e --manual-ack\nm publish --confirm e it\n", b" it"),)),
    "an error over mqks": Talk("mqks", ((b"c nonsense\n", b"error"),)),
}


def talk_to(address: Address, talk: Talk) -> None:
    """Be that client once; without asyncio, so that none of it is garbage of the server's loop."""
    with socket.create_connection(address, timeout=60) as client:
        for sent, wanted in talk.steps:
            client.sendall(sent)
            came = b""
            while wanted not in came:
                piece = client.recv(65536)
                assert piece, f"closed after {came!r}"
                came += piece


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, GatewaySettings(), QueueOptions()) as gateway:
        assert (await gateway.http.put(QUEUE + "2")).status_code == 201
        host = AsyncioHost(asyncio.get_running_loop(), threads=1)
        authenticator = OpenAuthenticator(gateway.broker, host)
        stomp, mqks = (
            StompServer(authenticator, host, limits=Limits()),
            MqksServer(authenticator, host, limits=MqksLimits()),
        )

        def connected() -> int:
            return sum(sum(server.connections().values()) for server in (gateway.server, stomp, mqks))

        yield World(gateway.address, await stomp.start(("127.0.0.1", 0)), await mqks.start(("127.0.0.1", 0)), connected)
        await stomp.stop()
        await mqks.stop()
        host.close()


@pytest.mark.parametrize("what", TALKS)
async def test_closed_connection_leaves_no_garbage(world: World, what: str) -> None:
    talk = TALKS[what]
    before = world.connected()

    async def go_through(times: int) -> None:
        for _ in range(times):
            await asyncio.to_thread(talk_to, getattr(world, talk.to), talk)
        async with asyncio.timeout(60):
            while world.connected() > before:
                await asyncio.sleep(0.01)
        for _ in range(10):  # what was called soon
            await asyncio.sleep(0.01)

    await go_through(1)  # what is made once, and remembered
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await go_through(TIMES)
        gc.collect()
        ours = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("curbstone"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert {name: count for name, count in ours.items() if count >= TIMES} == {}
