"""Requests that offer another protocol, as Java's HTTP client does: they are answered as all others are."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kit.gateway import MESSAGES, Running

pytestmark = pytest.mark.anyio

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def post(body: bytes, *, chunked: bool, offer: bytes = OFFER) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b" % (MESSAGES.encode(), offer)
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7], body[7:]) if piece])
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("body", [b"", b"hello", b"x\r\n\r\n" * 8_000])
async def test_body_with_an_ignored_upgrade_is_stored(gateway: Running, chunked: bool, body: bytes) -> None:
    """It was dropped: an empty message was stored, and confirmed with 201."""
    reply = await gateway.raw(post(body, chunked=chunked) + post(b"behind", chunked=chunked, offer=b"") + LAST)
    assert [line for line in reply.split(b"\r\n") if line.startswith(b"HTTP/1.1")] == [
        b"HTTP/1.1 201 Created", b"HTTP/1.1 201 Created", b"HTTP/1.1 200 OK",
    ]  # fmt: skip
    assert await gateway.pop_all() == [body, b"behind"]


@pytest.mark.parametrize("seed", range(6))
async def test_ignored_upgrade_works_for_any_split(gateway: Running, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    bodies = [b"%d\r\n\r\n" % number + b"y" * dice.choice([0, 1, 300, 5_000]) for number in range(12)]
    requests = [post(body, chunked=dice.random() < 0.4, offer=OFFER if dice.random() < 0.6 else b"") for body in bodies]
    reader, writer = await asyncio.open_connection(*gateway.address)
    data = b"".join(requests) + LAST
    while data:
        cut = dice.choice([1, 20, 200, 3_000])
        writer.write(data[:cut])
        await writer.drain()
        data = data[cut:]
    reply = await reader.read()
    writer.close()
    assert reply.count(b"HTTP/1.1 201 Created") == len(bodies)
    assert await gateway.pop_all() == bodies


async def test_ignored_upgrade_without_a_body_is_answered(gateway: Running) -> None:
    offer = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
    look = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % OFFER
    reply = await gateway.raw(look + post(b"1", chunked=False, offer=offer))
    assert reply.count(b"HTTP/1.1 200 OK") == reply.count(b"HTTP/1.1 201 Created") == 1
    assert await gateway.pop_all() == [b"1"]
