"""The ways of a message over each protocol, as a client goes them: published, taken and settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

Addresses = Mapping[str, tuple[str, int]]
MESSAGES = "/v2/default/queues/way/messages"


class Talk(Protocol):
    """An open conversation."""

    async def once(self) -> None:
        """Take one message all the way."""

    async def close(self) -> None:
        """End it."""


Way = Callable[[Addresses, str], Awaitable[Talk]]
"""Begins one, with a token."""


class Line:
    """A connection that is read up to what is waited for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, address: tuple[str, int]) -> Line:
        return cls(*await asyncio.open_connection(*address))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read_until(self, *wanted: bytes) -> bytes:
        """Return what comes up to and with all of these, in any order."""
        came = b""
        while not all(each in came for each in wanted):
            piece = await self._reader.read(65536)
            assert piece, f"closed after {came!r}"
            came += piece
        return came

    async def close(self) -> None:
        self._writer.close()


class Stomp:
    """SEND, its RECEIPT and MESSAGE, ACK and its RECEIPT."""

    def __init__(self, line: Line) -> None:
        self._line = line

    @classmethod
    async def begin(cls, addresses: Addresses, token: str) -> Stomp:
        line = await Line.to(addresses["stomp"])
        line.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:{token}\n\n\0".encode())
        await line.read_until(b"CONNECTED", b"\0")
        line.send(b"SUBSCRIBE\nid:0\ndestination:/queue/way\nack:client-individual\nreceipt:on\n\n\0")
        await line.read_until(b"receipt-id:on", b"\0")
        return cls(line)

    async def once(self) -> None:
        self._line.send(b"SEND\ndestination:/queue/way\nreceipt:sent\n\nthe body\0")
        came = await self._line.read_until(b"receipt-id:sent\n", b"the body\0")
        ack = came.partition(b"\nack:")[2].partition(b"\n")[0]
        self._line.send(b"ACK\nid:%b\nreceipt:settled\n\n\0" % ack)
        await self._line.read_until(b"receipt-id:settled\n")

    async def close(self) -> None:
        await self._line.close()


class Http:
    """POST and DELETE on a connection that stays."""

    def __init__(self, line: Line, head: str) -> None:
        self._line = line
        self._head = head

    @classmethod
    async def begin(cls, addresses: Addresses, token: str) -> Http:
        await make_queue(addresses, token)
        return cls(await Line.to(addresses["http"]), head_of("Content-Length: {}", token))

    async def once(self) -> None:
        self._line.send(("POST" + self._head.format(8)).encode() + b"the body")
        await self._line.read_until(b" 201 ", b"\r\n\r\n")
        self._line.send(("DELETE" + self._head.format(0)).encode())
        await self._line.read_until(b" 200 ", b"the body")

    async def close(self) -> None:
        await self._line.close()


class WebSockets:
    """A producer and a consumer that settles."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    @classmethod
    async def begin(cls, addresses: Addresses, token: str) -> WebSockets:
        await make_queue(addresses, token)
        lines = []
        for protocol, query in (("publish", ""), ("consume", "?ack&confirm=json&encoding=utf8")):
            line = await Line.to(addresses["http"])
            fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            fields += f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}"
            line.send(("GET" + head_of(fields, token, MESSAGES + query)).encode())
            await line.read_until(b" 101 ", b"\r\n\r\n")
            lines.append(line)
        return cls(lines)

    async def once(self) -> None:
        producer, consumer = self._lines
        producer.send(frame(b'{"message":"the body"}'))
        came, _ = await asyncio.gather(
            consumer.read_until(b"the body", b"ackId", b"}"), producer.read_until(b"\x81\x00")
        )
        ack = came.partition(b'"ackId":"')[2].partition(b'"')[0]
        consumer.send(frame(b'{"ackId":"%b"}' % ack))
        await consumer.read_until(b"settled")

    async def close(self) -> None:
        for line in self._lines:
            await line.close()


WAYS: Mapping[str, Way] = {"stomp": Stomp.begin, "http": Http.begin, "websocket": WebSockets.begin}


async def make_queue(addresses: Addresses, token: str) -> None:
    """Make it: HTTP and its sockets take no message for one that is not there."""
    line = await Line.to(addresses["http"])
    line.send(("PUT" + head_of("Content-Length: 0", token, MESSAGES.removesuffix("/messages"))).encode())
    await line.read_until(b" 201 ", b"\r\n\r\n")
    await line.close()


def head_of(fields: str, token: str, path: str = MESSAGES) -> str:
    """Return the head of a request but for its method."""
    return f" {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{fields}\r\n\r\n"


def frame(text: bytes) -> bytes:
    """Return a text frame of a client, masked by zeros."""
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text
