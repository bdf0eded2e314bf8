"""The WebSocket for several queues, on real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from curbstone.gateway.websocket.protocol import WebSocketProtocol
from curbstone.net.limits import TURN_OUTPUT_BYTES_MAX
from tests.kit.gateway import Running, json_from

PATH = "/v2/p1/queues"
BODY = "x" * 60_000
pytestmark = pytest.mark.anyio


async def send(socket: ClientConnection, **command: Any) -> None:
    await socket.send(json.dumps(command))


async def receive(socket: ClientConnection, count: int) -> list[Any]:
    """Return so many frames, in their order."""
    async with asyncio.timeout(60):
        return [await json_from(socket) for _ in range(count)]


async def queues(gateway: Running, *names: str) -> None:
    for name in names:
        assert (await gateway.http.put(f"{PATH}/{name}")).status_code == 201


async def test_one_socket_publishes_to_several_queues_and_consumes_from_them(gateway: Running) -> None:
    await queues(gateway, "a", "b")
    async with gateway.socket("queues", path=PATH) as socket:
        assert socket.subprotocol == "queues"
        for name in ("a", "b"):
            await send(socket, subscribe=name, ack=True, encoding="utf8")
        for name in ("a", "b", "a"):
            await send(socket, publish=name, message=f"for {name}")
        frames = await receive(socket, 8)
        assert [each["published"] for each in frames if "published" in each] == ["a", "b", "a"]
        deliveries = [each for each in frames if "message" in each]
        assert sorted((each["queue"], each["message"]) for each in deliveries) == [
            ("a", "for a"),
            ("a", "for a"),
            ("b", "for b"),
        ]
        for each in deliveries:
            await send(socket, ackId=each["ackId"])
        settled: list[str] = []
        while len(settled) < 3:
            settled += (await receive(socket, 1))[0]["settled"]
        assert sorted(settled) == sorted(each["ackId"] for each in deliveries)


async def test_a_queue_that_is_deleted_ends_its_subscription_and_not_the_socket(gateway: Running) -> None:
    await queues(gateway, "a", "b")
    async with gateway.socket("queues", path=PATH) as socket:
        await send(socket, subscribe="a")
        await send(socket, subscribe="b", encoding="utf8")
        await receive(socket, 2)
        assert (await gateway.http.delete(f"{PATH}/a")).status_code == 204
        assert await receive(socket, 1) == [{"unsubscribed": "a", "code": 404, "error": "no such queue: p1/a"}]
        await send(socket, publish="b", message="continues")
        assert {each.get("message") for each in await receive(socket, 2)} == {None, "continues"}


async def test_lost_socket_requeues_messages_of_each_queue(gateway: Running) -> None:
    await queues(gateway, "a", "b")
    for tries in (0, 1):
        async with gateway.socket("queues", path=PATH) as socket:
            if not tries:
                for name in ("a", "b"):
                    await send(socket, publish=name, message=name)
                await receive(socket, 2)
            for name in ("a", "b"):
                await send(socket, subscribe=name, ack=True, encoding="utf8")
            deliveries = [each for each in await receive(socket, 4) if "message" in each]
            assert sorted((each["message"], each["tries"]) for each in deliveries) == [("a", tries), ("b", tries)]


@pytest.mark.parametrize(
    ("protocol", "path", "status"),
    [("publish", PATH, 400), ("consume", PATH, 400), ("", PATH, 400), ("queues", "/v2/a.b/queues", 400)]
    + [("queues", "/v2/p1/queues/q/messages", 400), ("queues", "/v2/p1", 404)],
)
async def test_handshake_with_other_parameters_is_refused(
    gateway: Running, protocol: str, path: str, status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with gateway.socket(protocol, path=path):
            pass
    assert refused.value.response.status_code == status


async def test_slow_reader_is_paused_and_later_gets_everything(gateway: Running) -> None:
    """What eight queues delivered in one turn waited in memory, whether or not the client read any of it."""
    names, each_has = "abcdefgh", 40
    for name in names:
        await gateway.http.put(f"{PATH}/{name}", json={"cap": "16MiB"})
        batch = [{"message": BODY} for _ in range(each_has)]
        reply = await gateway.http.post(f"{PATH}/{name}/messages/batch", json=batch)
        assert reply.status_code == 201, reply.text
    async with gateway.socket("queues", path=PATH) as socket:
        (wire,) = [each for each in gateway.server.clients if isinstance(each, WebSocketProtocol)]
        socket.transport.pause_reading()
        for name in names:
            await send(socket, subscribe=name, ack=True, limit=1000, encoding="utf8")
        async with asyncio.timeout(60):
            while not wire.is_full:
                await gateway.http.get("/healthz")
        held = await unsettled(gateway, names)
        for _ in range(20):
            await gateway.http.get("/healthz")
        assert await unsettled(gateway, names) == held
        assert wire._transport.get_write_buffer_size() < TURN_OUTPUT_BYTES_MAX + 2 * each_has * len(BODY)
        socket.transport.resume_reading()
        found: dict[str, int] = dict.fromkeys(names, 0)
        while sum(found.values()) < each_has * len(names):
            (frame,) = await receive(socket, 1)
            if "message" in frame:
                assert frame["message"] == BODY
                found[frame["queue"]] += 1
        assert set(found.values()) == {each_has}


async def unsettled(gateway: Running, names: str) -> int:
    """Return how many messages have been delivered and not settled."""
    return sum([(await gateway.http.get(f"{PATH}/{name}")).json()["wip"] for name in names])


async def test_a_stop_closes_with_1001(gateway: Running) -> None:
    await queues(gateway, "a")
    async with gateway.socket("queues", path=PATH) as socket:
        await send(socket, subscribe="a")
        await receive(socket, 1)
        await gateway.server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
