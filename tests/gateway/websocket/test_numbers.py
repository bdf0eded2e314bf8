"""A publishing WebSocket with `?producer=`: what is sent again under its number is stored once."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kit.gateway import QUEUE, Running, json_from

pytestmark = pytest.mark.anyio

AS_WEB = "?producer=web-1&confirm=json"
REPEATED = {"duplicate": True}


async def send(socket: ClientConnection, *messages: str, **more: object) -> None:
    for message in messages:
        await socket.send(orjson.dumps({"message": message, **more}).decode())


async def answers(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    return [await json_from(socket) for _ in range(count)]


async def test_numbers_continue_over_connections_and_repeats_are_reported(gateway: Running) -> None:
    async with gateway.socket("publish", AS_WEB) as socket:
        assert await json_from(socket) == {"producer": "web-1", "seq": 0}
        await send(socket, "1", "2")
        await socket.send(b"3")
        assert [sorted(answer) for answer in await answers(socket, 3)] == [["id"]] * 3
    async with gateway.socket("publish", AS_WEB) as socket:
        assert await json_from(socket) == {"producer": "web-1", "seq": 3}
        await send(socket, "2", seq=2)
        await send(socket, "3", "4")
        await socket.send("")
        await socket.send(b"5")
        first, second, *stored = await answers(socket, 4)
        assert first == second == REPEATED
        assert all("id" in answer for answer in stored)
    assert await gateway.pop_all() == [b"1", b"2", b"3", b"4", b"5"]
    assert (await gateway.http.get(f"{QUEUE}/producers/web-1")).json()["seq"] == 5


async def test_without_ids_a_message_is_confirmed_by_an_empty_frame_and_a_repeat_by_its_name(gateway: Running) -> None:
    async with gateway.socket("publish", "?producer=web-1") as socket:
        await socket.recv()
        await send(socket, "1")
        assert await socket.recv() == ""
        await send(socket, "1", seq=1)
        assert await json_from(socket) == REPEATED


async def test_message_behind_a_gap_is_refused_and_the_connection_kept(gateway: Running) -> None:
    async with gateway.socket("publish", AS_WEB) as socket:
        await socket.recv()
        await send(socket, "1")
        await send(socket, "3", seq=3)
        await send(socket, "4")
        _, *refused = await answers(socket, 3)
        assert [(answer["code"], answer["expected"]) for answer in refused] == [(409, 2)] * 2
        await send(socket, "2", seq=2)
        await send(socket, "3", "4")
        await send(socket, "40", seq=40, after=4)
        assert all("id" in answer for answer in await answers(socket, 4))
    assert await gateway.pop_all() == [b"1", b"2", b"3", b"4", b"40"]


async def test_messages_behind_a_refused_one_are_not_stored(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": "1MiB"})
    async with gateway.socket("publish", AS_WEB) as socket:
        await socket.recv()
        sent = 0
        while True:
            await send(socket, "x" * 10_000)
            sent += 1
            if "id" not in (answer := await json_from(socket)):
                break
        assert answer["code"] == 507
        await send(socket, "small")
        assert (await json_from(socket))["expected"] == sent


async def test_a_later_connection_of_a_producer_ends_the_earlier_one(gateway: Running) -> None:
    async with gateway.socket("publish", AS_WEB) as earlier:
        await earlier.recv()
        await send(earlier, "1")
        await earlier.recv()
        async with gateway.socket("publish", AS_WEB) as later:
            assert await json_from(later) == {"producer": "web-1", "seq": 1}
            assert (await json_from(earlier))["code"] == 409
            with pytest.raises(ConnectionClosed):
                await earlier.recv()
            await send(later, "2")
            assert "id" in await json_from(later)


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        ({"seq": 0}, "bad seq: it must be a whole number from 1"),
        ({"seq": "x"}, "bad seq"),
        ({"seq": 5, "after": 5}, "bad after: 5 is not below the number 5"),
        ({"Idempotency-Key": "k"}, "a numbered producer must not send an Idempotency-Key"),
    ],
)
async def test_refused_number_is_reused_by_the_next_message(
    gateway: Running, frame: dict[str, object], rule: str
) -> None:
    async with gateway.socket("publish", AS_WEB) as socket:
        await socket.recv()
        await send(socket, "1")
        await send(socket, "2", **frame)
        await send(socket, "behind", **({"seq": 3} if "after" in frame else {}))
        _, refused, behind = await answers(socket, 3)
        assert refused["code"] == 400
        assert rule in refused["error"]
        assert (behind["code"], behind["expected"]) == (409, 2)
        await send(socket, "2", seq=2)
        await send(socket, "3")
        assert all("id" in answer for answer in await answers(socket, 2))
    assert await gateway.pop_all() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("refused", ['{"message":"2","ttl":-1}', '{"message":5,"seq":2}', "x" * 65_537])
async def test_refused_message_keeps_its_number_and_can_be_skipped(gateway: Running, refused: str) -> None:
    """The message behind it would get its number else, and a client that numbers its messages itself would lose one."""
    async with gateway.socket("publish", AS_WEB) as socket:
        await socket.recv()
        await send(socket, "1")
        await socket.send(refused if refused.startswith("{") else refused.encode())
        await send(socket, "3")
        await send(socket, "3", seq=3, after=1)
        _, error, behind, _ = await answers(socket, 4)
        assert error["code"] in (400, 413)
        assert (behind["code"], behind["expected"]) == (409, 2)
        assert (await gateway.http.get(f"{QUEUE}/producers/web-1")).json()["seq"] == 3
    assert await gateway.pop_all() == [b"1", b"3"]


@pytest.mark.parametrize("path", [f"{QUEUE}/messages?producer=a%20b", "/v2/p1/events/sold?producer=a"])
async def test_a_bad_name_and_an_event_are_refused(gateway: Running, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await gateway.socket("publish", path=path)
    assert refused.value.response.status_code == 400
