"""Clients that send requests ahead of their answers: order, turns, and what is kept of them."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from curbstone.gateway.connection import HttpConnection
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: uvloop does not exist everywhere."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


def post(body: bytes, *, chunked: bool = False) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % MESSAGES.encode()
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7], body[7:]) if piece])
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def connection_of(
    gateway: Running,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, HttpConnection]:
    """Return a new connection, with little room for what is not read, and the server's end of it."""
    before = set(gateway.server.clients)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, gateway.address)
    reader, writer = await asyncio.open_connection(sock=narrow, limit=4096)
    async with asyncio.timeout(60):
        while not (new := set(gateway.server.clients) - before):
            await asyncio.sleep(0)
    wire = new.pop()
    assert isinstance(wire, HttpConnection)
    wire.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return reader, writer, wire


@pytest.mark.parametrize("seed", range(4))
async def test_pipelined_requests_are_answered_in_order_for_any_split(gateway: Running, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    sizes = [dice.choice([0, 1, 10, 255, 256, 257, 3000, 60_000]) for _ in range(60)]
    bodies = [b"%d\r\n\r\n" % number + b"\r\n\r\nx" * (size // 5) for number, size in enumerate(sizes)]
    text = b"".join([post(body, chunked=dice.random() < 0.4) for body in bodies]) + LAST
    reader, writer = await asyncio.open_connection(*gateway.address)

    async def send() -> None:
        rest = text
        while rest:
            piece, rest = rest[: (cut := dice.choice([1, 20, 300, 5000, 300_000]))], rest[cut:]
            writer.write(piece)
            await writer.drain()

    _, reply = await asyncio.gather(send(), reader.read())
    writer.close()
    assert (reply.count(b"HTTP/1.1 201 "), reply.count(b"HTTP/1.1 200 ")) == (60, 1)
    assert await gateway.pop_all() == bodies


async def test_a_client_that_does_not_read_is_not_read(gateway: Running) -> None:
    """What it sent was parsed and answered without end: 2.7 GB after half a minute."""
    _, writer, wire = await connection_of(gateway)
    writer.write(HEALTH * 200_000)  # 8 MB
    answered = -1
    async with asyncio.timeout(60):
        while answered != wire.server.answered:  # until it answers the others only
            answered = wire.server.answered + 20
            for _ in range(20):
                assert (await gateway.http.get("/healthz")).status_code == 200
    assert len(wire.held) <= 512 * 1024
    assert wire.transport.get_write_buffer_size() <= 128 * 1024
    assert not wire.is_reading
    writer.transport.abort()
    async with asyncio.timeout(60):
        while wire in gateway.server.clients:
            await gateway.http.get("/healthz")
            if not wire.is_reading:  # nobody reads, so nobody sees that it is gone, unless something is written
                wire.transport.abort()
    assert not wire.held


async def test_flood_of_requests_does_not_starve_others(gateway: Running) -> None:
    """One such client held up all others for seconds."""
    reader, writer, wire = await connection_of(gateway)
    writer.write(HEALTH * 20_000)
    seen = b""
    while seen.count(b"HTTP/1.1 200") < 10:
        seen += await reader.read(65536)
    reading = asyncio.create_task(reader.read())
    before = wire.server.answered
    for _ in range(5):
        assert (await gateway.http.get("/healthz")).status_code == 200
    assert wire.server.answered - before < 1000
    reading.cancel()
    writer.transport.abort()


async def test_requests_behind_a_long_poll_are_answered_after_it(gateway: Running) -> None:
    reader, writer, wire = await connection_of(gateway)
    writer.write(b"DELETE %b?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n" % MESSAGES.encode() + HEALTH * 3000)
    await gateway.polling(1)
    writer.write(HEALTH * 3000 + LAST)
    wire.check(asyncio.get_running_loop().time() + 1000)  # none of it is late
    await gateway.publish("first")
    reply = await reader.read()
    assert reply.partition(b"\r\n\r\n")[2].startswith(b"first")
    assert reply.count(b"HTTP/1.1 200") == 6002
    writer.close()


async def test_a_bad_request_behind_good_ones_is_refused_after_their_answers(gateway: Running) -> None:
    reply = await gateway.raw(post(b"a") + post(b"b", chunked=True) + b"nonsense\r\n\r\n" + post(b"c"))
    assert [line[9:12] for line in reply.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [b"201", b"201", b"400"]
    assert await gateway.pop_all() == [b"a", b"b"]


async def test_requests_behind_connection_close_are_not_answered(gateway: Running) -> None:
    reply = await gateway.raw(LAST + post(b"a") * 100)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert await gateway.counts() == (0, 0, 0)


async def test_a_client_that_leaves_while_its_answers_wait_leaves_no_traceback(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """`handler is closed` for the one being answered, and an error of the protocol for each behind it."""
    await gateway.http.put(QUEUE, json={"cap": 64 * 1024 * 1024})
    await gateway.publish(*[b"x" * 60_000] * 40)
    _, writer, wire = await connection_of(gateway)
    writer.write(b"DELETE %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % MESSAGES.encode() * 40)
    async with asyncio.timeout(60):
        while wire.server.answered < 45:
            await gateway.http.get("/healthz")
    writer.transport.abort()
    async with asyncio.timeout(60):
        while wire in gateway.server.clients:
            await gateway.http.get("/healthz")
            if not wire.is_reading:
                wire.transport.abort()
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pipelined_websocket_upgrade_is_served(gateway: Running) -> None:
    await gateway.publish("a")
    reader, writer = await asyncio.open_connection(*gateway.address)
    lines = [f"GET {MESSAGES} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    writer.write(HEALTH * 50 + "\r\n".join([*lines, "Sec-WebSocket-Protocol: consume", "", ""]).encode())
    reply = await reader.readuntil(b"\x82\x01a")
    assert reply.count(b"HTTP/1.1 200 OK") == 50
    writer.close()
