"""What a request's head must be, and what a trailer is not: told by what returns over the wire."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.kit.engine import wait_until
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

POST = b"POST " + MESSAGES.encode() + b" HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("together", [True, False], ids=["in one read", "byte by byte"])
@pytest.mark.parametrize(
    "trailer",
    [
        b"x-msg-x-injected: 1",
        b"Content-Type: text/html",
        b"Host: evil.example",
        b"Origin: https://evil.example",
        b"Idempotency-Key: other",
    ],
)
async def test_trailer_fields_are_ignored(gateway: Running, trailer: bytes, together: bool) -> None:
    """It was merged into the head: stored as metadata, and obeyed as Host, Origin and Idempotency-Key."""
    request = POST + HOST + CHUNKED + b"Idempotency-Key: mine\r\n\r\n1\r\na\r\n0\r\n" + trailer + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection(*gateway.address)
    for piece in [request] if together else [request[n : n + 1] for n in range(len(request))]:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
    writer.close()
    repeat = await gateway.http.post(MESSAGES, content=b"a", headers={"Idempotency-Key": "mine"})
    assert repeat.status_code == 201, "the key in the head counts"
    popped = await gateway.http.delete(MESSAGES)
    assert popped.content == b"a"
    assert "x-msg-x-injected" not in popped.headers
    assert popped.headers["content-type"] == "application/octet-stream"
    assert await gateway.counts() == (0, 0, 0)


@pytest.mark.parametrize("junk", [b"a" * 400_000, b"a: " + b"b" * 400_000, b"a: b\r\n" * 30_000])
async def test_trailer_fields_are_bounded(gateway: Running, junk: bytes) -> None:
    reply = await gateway.raw(POST + HOST + CHUNKED + b"\r\n1\r\na\r\n0\r\n" + junk)
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert await gateway.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("head", "status", "why"),
    [
        (b"GET /healthz HTTP/1.1\r\n", 400, "the Host field is missing"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400, "more than one Host field"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 400, "more than one Host field"),
        (b"GET /healthz HTTP/1.1\r\nHost:\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: a b\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost, localhost\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost:x\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: u@localhost\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost/\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.1\r\nHost: [::1\r\n", 400, "the Host field must be"),
        (b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n", 400, "more than one Host field"),
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n", 400, "name different servers"),
        (b"GET http://localhost:1/healthz HTTP/1.1\r\nHost: localhost\r\n", 400, "name different servers"),
        (b"GET http://u:p@localhost/healthz HTTP/1.1\r\nHost: localhost\r\n", 400, "the Host field must be"),
        (b"GET ftp://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n", 400, "neither http nor https"),
        (b"GET localhost HTTP/1.1\r\nHost: localhost\r\n", 400, ""),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n", 405, "CONNECT is not allowed"),
        (b"CONNECT localhost HTTP/1.1\r\nHost: localhost\r\n", 405, "CONNECT is not allowed"),
        (b"GET /healthz\r\n", 505, "use HTTP/1.1 or HTTP/1.0"),
        (b"GET /healthz HTTP/0.9\r\nHost: localhost\r\n", 505, "use HTTP/1.1 or HTTP/1.0"),
        (b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n", 505, "use HTTP/1.1 or HTTP/1.0"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", 505, "HTTP/2 is not supported"),
        (b"POST /healthz HTTP/1.0\r\n" + HOST + CHUNKED, 400, "HTTP/1.0 has no Transfer-Encoding"),
        (POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n", 400, "only supported Transfer-Encoding is chunked"),
        (POST + HOST + b"Transfer-Encoding: gzip\r\n" + CHUNKED, 400, "only supported Transfer-Encoding is chunked"),
        (POST + HOST + CHUNKED + CHUNKED, 400, ""),
        (POST + HOST + b"Transfer-Encoding: chunked, chunked\r\n", 400, ""),
        (POST + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n", 400, ""),
        (POST + HOST + b"Content-Length: 1, 1\r\n", 400, ""),
    ],
)
async def test_a_head_that_breaks_a_rule_is_refused_and_the_connection_ends(
    gateway: Running, caplog: pytest.LogCaptureFixture, head: bytes, status: int, why: str
) -> None:
    reply = await gateway.raw(head + b"\r\n1\r\na\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert why.encode() in reply
    assert len(re.findall(rb"HTTP/1\.1 \d\d\d ", reply)) == 1
    assert await gateway.counts() == (0, 0, 0)
    assert not caplog.records


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost",
        b"GET HTTP://LOCALHOST:80/healthz?x HTTP/1.1\r\nHost: localhost",
        b"GET http://[::1]:8/healthz HTTP/1.1\r\nHost: [::1]:8",
        b"GET http://localhost/healthz HTTP/1.0",
        b"GET /healthz HTTP/1.0",
        b"GET /healthz HTTP/1.1\r\nhOsT: 127.0.0.1:80",
    ],
)
async def test_a_whole_url_and_an_old_client_are_served(gateway: Running, request_line: bytes) -> None:
    reply = await gateway.raw(request_line + b"\r\nConnection: close\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 ")


async def test_the_host_of_a_whole_url_is_checked_like_any_other(gateway: Running) -> None:
    for head in (b"GET http://evil.example%b HTTP/1.1\r\nHost: evil.example", b"GET http://evil.example%b HTTP/1.0"):
        reply = await gateway.raw(head % QUEUE.encode() + b"\r\nConnection: close\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 421 ")


# ---------------------------------------------------------------- bodies that nobody wants


async def test_endless_body_is_read_up_to_a_bound(gateway: Running) -> None:
    """It was read for a minute, 40 GiB of it."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(POST + HOST + CHUNKED + b"\r\n")
    sent = 0
    reply = b""

    async def read() -> None:
        nonlocal reply
        try:
            while piece := await reader.read(65536):
                reply += piece
        except ConnectionError:
            pass

    reading = asyncio.create_task(read())
    with pytest.raises(ConnectionError):
        while sent < 200 * 1024 * 1024:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 65536
    await reading
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in reply


@pytest.mark.parametrize("length", [10**10, 100_000])
async def test_silent_client_is_disconnected_soon_after_a_refusal(gateway: Running, length: int) -> None:
    before = set(gateway.server.clients)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(POST + HOST + b"Content-Length: %d\r\n\r\n" % length)
    assert (await reader.read()).startswith(b"HTTP/1.1 413 ")  # and our half ends at once
    [wire] = set(gateway.server.clients) - before
    wire.check(asyncio.get_running_loop().time() + 6)
    await wait_until(lambda: wire not in gateway.server.clients)
    writer.close()


async def test_small_unwanted_body_is_skipped_and_the_connection_kept(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b"POST /v2/p1/queues/missing/messages HTTP/1.1\r\n" + HOST + b"Content-Length: 30000\r\n\r\n")
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 404 ")
    writer.write(b"x" * 30_000 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"HTTP/1.1 200 OK" in await reader.readuntil(b"}")
    writer.close()


async def test_expect_100_is_refused_before_the_body(gateway: Running) -> None:
    expecting = b"Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n"
    reply = await gateway.raw(POST + HOST + expecting)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in reply
