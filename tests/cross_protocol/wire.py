"""Producers and consumers of every protocol, each with no more than its own protocol's means.

A producer publishes a `Sent` and returns nothing: the message's id is learned by those who consume it. A consumer
reads in a group of its own, so that all of them see every message, and returns what it `Received`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from curbstone.core.headers import escape
from tests.kit.server import ServerProcess
from tests.stomp.client import Peer

QUEUE = "/v2/cross/queues/q"
MESSAGES = QUEUE + "/messages"
DESTINATION = "/queue/cross/q"
OF_STOMP = frozenset(
    ("subscription", "message-id", "destination", "ack", "content-length", "content-type")
    + ("timestamp", "redelivered", "x-tries", "x-mature")
)
OF_JSON = frozenset(
    ("Content-Type", "timestamp", "redelivered", "ackId", "id", "tries", "expires", "message", "encoding")
)
OF_HTTP = frozenset(("x-msg-id", "x-msg-timestamp", "x-msg-redelivered", "x-msg-tries"))


class Sent(NamedTuple):
    """A message; its metadata by the names they have in JSON."""

    body: bytes
    content_type: str
    metadata: dict[str, str]


class Received(NamedTuple):
    """A message as a consumer of any protocol sees it."""

    id: str
    timestamp: int
    tries: int
    redelivered: bool
    body: bytes
    content_type: str
    metadata: dict[str, str]


Producer = Callable[[ServerProcess, Sent], Awaitable[None]]
Consumer = Callable[[ServerProcess, str, int], Awaitable[list[Received]]]


def http(server: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60)


@asynccontextmanager
async def socket(server: ServerProcess, protocol: str, query: str = "") -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http", "ws", 1) + MESSAGES + query
    async with connect(url, subprotocols=[Subprotocol(protocol)], compression=None, proxy=None) as connection:
        yield connection


# ---------------------------------------------------------------- producers


async def http_post(server: ServerProcess, sent: Sent) -> None:
    fields = {"Content-Type": sent.content_type, **sent.metadata}
    headers = httpx.Headers([(name.encode(), value.encode()) for name, value in fields.items()])
    async with http(server) as client:
        assert (await client.post(MESSAGES, content=sent.body, headers=headers)).status_code == 201


async def http_batch(server: ServerProcess, sent: Sent) -> None:
    async with http(server) as client:
        assert (await client.post(MESSAGES + "/batch", json=[_object(sent)])).status_code == 201


async def socket_two_frames(server: ServerProcess, sent: Sent) -> None:
    async with socket(server, "publish") as connection:
        await connection.send(json.dumps({"Content-Type": sent.content_type, **sent.metadata}))
        await connection.send(sent.body)
        assert await connection.recv() == ""


async def socket_one_frame(server: ServerProcess, sent: Sent) -> None:
    async with socket(server, "publish") as connection:
        await connection.send(json.dumps(_object(sent)))
        assert await connection.recv() == ""


async def stomp_send(server: ServerProcess, sent: Sent) -> None:
    fields = {"destination": DESTINATION, "receipt": "r", "content-length": str(len(sent.body))}
    fields |= {"content-type": sent.content_type, **sent.metadata}
    lines = [f"{escape(name)}:{escape(value)}" for name, value in fields.items()]
    peer = await Peer.open(server.stomp)
    await peer.connect()
    await peer.send("\n".join(["SEND", *lines, "", ""]).encode() + sent.body + b"\0")
    assert (await peer.frame()).command == "RECEIPT"
    await peer.close()


def _object(sent: Sent) -> dict[str, str]:
    message = base64.b64encode(sent.body).decode()
    return {"Content-Type": sent.content_type, **sent.metadata, "message": message, "encoding": "base64"}


# ---------------------------------------------------------------- consumers


async def http_pop(server: ServerProcess, group: str, count: int) -> list[Received]:
    found = []
    async with http(server) as client:
        for _ in range(count):
            reply = await client.delete(MESSAGES, params={"group": group, "wait": 30})
            assert reply.status_code == 200
            raw = {name.decode().lower(): value for name, value in reply.headers.raw}
            metadata = {
                name: _header_text(value)
                for name, value in raw.items()
                if name.startswith(("x-msg-", "ce-")) and name not in OF_HTTP
            }
            of_delivery = (int(raw["x-msg-timestamp"]), int(raw["x-msg-tries"]), raw["x-msg-redelivered"] == b"true")
            content_type = _header_text(raw["content-type"])
            found.append(Received(raw["x-msg-id"].decode(), *of_delivery, reply.content, content_type, metadata))
    return found


def _header_text(value: bytes) -> str:
    """What came as an HTTP header is as it was, UTF-8 here; what did not fit into one is percent-encoded."""
    return value.decode() if not value.isascii() else unquote(value.decode(), errors="strict")


async def http_lease(server: ServerProcess, group: str, count: int) -> list[Received]:
    async with http(server) as client:
        asked = {"count": count, "group": group, "wait": 30}
        messages = (await client.post(MESSAGES + "/lease", json=asked)).json()["messages"]
        tokens = [message["ackId"] for message in messages]
        assert (await client.post(MESSAGES + "/ack", json={"ackIds": tokens})).json()["settled"] == count
    return [_received(message) for message in messages]


async def event_stream(server: ServerProcess, group: str, count: int) -> list[Received]:
    found: list[dict[str, Any]] = []
    headers = {"Accept": "text/event-stream"}
    async with http(server) as client:
        async with client.stream("GET", MESSAGES, params={"group": group, "limit": 100}, headers=headers) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    break
        tokens = [message["ackId"] for message in found]
        assert (await client.post(MESSAGES + "/ack", json={"ackIds": tokens})).json()["settled"] == count
    return [_received(message) for message in found]


async def socket_frames(server: ServerProcess, group: str, count: int) -> list[Received]:
    found = []
    async with socket(server, "consume", f"?ack&limit=100&group={group}") as connection:
        for _ in range(count):
            metadata = json.loads(await connection.recv())
            body = await connection.recv(decode=False)
            found.append(_received(metadata, bytes(body)))
            await connection.send(json.dumps({"ackId": metadata["ackId"]}))
    return found


async def socket_objects(server: ServerProcess, group: str, count: int) -> list[Received]:
    async with socket(server, "consume", f"?encoding=base64&group={group}") as connection:
        return [_received(json.loads(await connection.recv())) for _ in range(count)]


async def stomp_subscribe(server: ServerProcess, group: str, count: int) -> list[Received]:
    peer = await Peer.open(server.stomp)
    await peer.connect()
    lines = [f"destination:{DESTINATION}", "id:1", "ack:client-individual", f"x-ks-group:{group}"]
    await peer.send("\n".join(["SUBSCRIBE", *lines, "", "\0"]).encode())
    found: list[Received] = []
    settled = 0
    while len(found) < count or settled < count:
        frame = await peer.frame()
        if frame.command == "RECEIPT":  # it may come before the next message
            settled += 1
            continue
        assert frame.command == "MESSAGE", frame
        headers = frame.headers
        await peer.send(f"ACK\nid:{headers['ack']}\nreceipt:a\n\n\0".encode())
        metadata = {
            name if name.startswith(("x-", "ce-")) else f"x-msg-x-{name}": value
            for name, value in headers.items()
            if name not in OF_STOMP
        }
        of_delivery = (int(headers["timestamp"]), int(headers["x-tries"]), headers["redelivered"] == "true")
        content_type = headers.get("content-type", "application/octet-stream")
        found.append(Received(headers["message-id"], *of_delivery, frame.body, content_type, metadata))
    await peer.close()
    return found


def _received(message: dict[str, Any], body: bytes | None = None) -> Received:
    if body is None:
        text = message["message"]
        body = base64.b64decode(text) if message.get("encoding") == "base64" else text.encode()
    metadata = {name: value for name, value in message.items() if name not in OF_JSON}
    of_delivery = (message["timestamp"], message["tries"], message["redelivered"])
    return Received(message["id"], *of_delivery, body, message["Content-Type"], metadata)


PRODUCERS: dict[str, Producer] = {
    "http": http_post,
    "batch": http_batch,
    "ws2": socket_two_frames,
    "ws1": socket_one_frame,
    "stomp": stomp_send,
}
CONSUMERS: dict[str, Consumer] = {
    "pop": http_pop,
    "lease": http_lease,
    "sse": event_stream,
    "wsframes": socket_frames,
    "wsobjects": socket_objects,
    "stomp": stomp_subscribe,
}
