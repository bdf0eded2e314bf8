"""What each protocol carries is in its own totals: two messages sent, one given back and acknowledged, one rejected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.kit.server import ServerProcess
from tests.mqks.world import Peer as MqksPeer
from tests.stomp.client import CONNECT, Peer
from tests.stomp.harness import Received, read_frames

pytestmark = pytest.mark.anyio

PREFIX = "curbstone_protocol_messages_"
WORDS = ("received", "confirmed", "delivered", "redelivered", "acknowledged", "returned", "rejected")
Numbers = tuple[int, ...]


async def totals(client: httpx.AsyncClient) -> dict[str, Numbers]:
    """Return by protocol its numbers, in the order of WORDS."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                word = sample.name.removeprefix(PREFIX).removesuffix("_total")
                found[sample.labels["protocol"], word] = sample.value
    protocols = {protocol for protocol, _ in found}
    return {protocol: tuple(int(found[protocol, word]) for word in WORDS) for protocol in protocols}


async def over_http(server: ServerProcess, client: httpx.AsyncClient) -> None:
    at = "/v2/default/queues/http"
    await client.put(at)
    await client.post(at + "/messages", content="a")
    await client.post(at + "/messages/batch", json=[{"message": "b"}])
    for outcome, body in (("nack", {}), ("ack", {}), ("nack", {"reject": True})):
        (lease,) = (await client.post(at + "/messages/lease")).json()["messages"]
        reply = await client.post(f"{at}/messages/{outcome}", json={"ackIds": [lease["ackId"]], **body})
        assert reply.json()["settled"] == 1


async def over_websocket(server: ServerProcess, client: httpx.AsyncClient) -> None:
    await client.put("/v2/default/queues/ws")
    url = f"{server.url.replace('http', 'ws', 1)}/v2/default/queues/ws/messages"
    async with connect(url, subprotocols=[Subprotocol("publish")], proxy=None) as socket:
        for _ in range(2):
            await socket.send(b"x")
            assert await socket.recv() == ""
    async with connect(f"{url}?ack&limit=1", subprotocols=[Subprotocol("consume")], proxy=None) as socket:
        for command in ("nackId", "ackId", "rejectId"):
            await socket.send(json.dumps({command: json.loads(await socket.recv())["ackId"]}))
            await socket.recv()


async def over_sse(server: ServerProcess, client: httpx.AsyncClient) -> None:
    at = "/v2/default/queues/sse"
    await client.put(at)
    await client.post(at + "/messages", content="a")
    async with client.stream("GET", at + "/messages", headers={"Accept": "text/event-stream"}) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                break


async def stomp(queue: str, send: Callable[[bytes], Awaitable[None]], frame: Callable[[], Awaitable[Received]]) -> None:
    await send(CONNECT)
    await frame()
    await send(f"SEND\ndestination:{queue}\n\na\0".encode())
    await send(f"BEGIN\ntransaction:t\n\n\0SEND\ntransaction:t\ndestination:{queue}\n\nb\0".encode())
    await send(b"COMMIT\ntransaction:t\nreceipt:sent\n\n\0")
    assert (await frame()).headers["receipt-id"] == "sent"
    await send(f"SUBSCRIBE\nid:0\ndestination:{queue}\nack:client-individual\nprefetch-count:1\n\n\0".encode())
    for command, more in (("NACK", ""), ("ACK", ""), ("NACK", "requeue:false\nreceipt:end\n")):
        message = await frame()
        await send(f"{command}\nid:{message.headers['ack']}\n{more}\n\0".encode())
    assert (await frame()).headers["receipt-id"] == "end"


async def over_stomp(server: ServerProcess, client: httpx.AsyncClient) -> None:
    peer = await Peer.open(server.stomp)
    await stomp("/queue/stomp", peer.send, peer.frame)
    await peer.close()


async def over_stomp_websocket(server: ServerProcess, client: httpx.AsyncClient) -> None:
    url = server.url.replace("http", "ws", 1) + "/stomp"
    async with connect(url, subprotocols=[Subprotocol("v12.stomp")], proxy=None) as socket:

        async def frame() -> Received:
            (received,) = read_frames(bytes(await socket.recv(decode=False)) + b"\n")
            return received

        await stomp("/queue/stomp-websocket", socket.send, frame)


async def over_mq(server: ServerProcess, client: httpx.AsyncClient) -> None:
    await client.put("/mq/mq")
    await client.post("/mq/mq/messages", content="a")
    message_id = (await client.get("/mq/mq/messages")).headers["x-message-id"]
    await client.delete(f"/mq/mq/messages/{message_id}")


async def over_mqks(server: ServerProcess, client: httpx.AsyncClient) -> None:
    peer = await MqksPeer.open(server.mqks)
    await peer.confirm("r rebind --confirm mqks event", "a publish --confirm event a", "b publish --confirm event b")
    await peer.request("c consume mqks --manual-ack --window=1")
    peer.send("s reject c a")
    assert await peer.line() == "c ok a event=event,retry=1 a"
    peer.send("t ack --confirm c a")
    assert sorted(await peer.lines(2)) == ["c ok b event=event b", "t ok "]
    await peer.close()


async def test_each_protocol_counts_its_messages(server: ServerProcess) -> None:
    expected: dict[str, Numbers] = {
        "http": (3, 3, 3, 1, 1, 1, 1),  # the third message is the one for SSE
        "websocket": (2, 2, 3, 1, 1, 1, 1),
        "sse": (0, 0, 1, 0, 0, 0, 0),
        "stomp": (2, 2, 3, 1, 1, 1, 1),
        "stomp-websocket": (2, 2, 3, 1, 1, 1, 1),
        "mq": (1, 1, 1, 0, 1, 0, 0),
        "mqks": (2, 2, 3, 1, 1, 1, 0),
    }
    uses = (over_http, over_websocket, over_sse, over_stomp, over_stomp_websocket, over_mq, over_mqks)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        for use in uses:
            await use(server, client)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):  # what was settled without a receipt may be counted a moment later
                while await totals(client) != expected:
                    await asyncio.sleep(0.02)
        assert await totals(client) == expected
