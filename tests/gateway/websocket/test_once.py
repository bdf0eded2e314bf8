"""`Idempotency-Key` in the metadata of a publishing WebSocket: stored once, confirmed in order."""

from __future__ import annotations

import orjson
import pytest

from tests.kit.gateway import Running, json_from

pytestmark = pytest.mark.anyio

EVENT = "/v2/p1/events/order/messages"


def once(key: object, **more: object) -> str:
    return orjson.dumps({"Idempotency-Key": key, **more}).decode()


async def test_a_repeated_message_is_stored_once_in_its_place(gateway: Running) -> None:
    async with gateway.socket("publish", "?confirm=json") as socket:
        for frame in ('{"message":"1"}', once("k", message="2"), '{"message":"3"}', once("k", message="2")):
            await socket.send(frame)
        ids = [(await json_from(socket))["id"] for _ in range(4)]
    async with gateway.socket("publish", "?confirm=json") as socket:
        await socket.send(once("k"))
        await socket.send(b"2")
        ids.append((await json_from(socket))["id"])
    assert ids[1] == ids[3] == ids[4]
    assert len(set(ids)) == 3
    assert await gateway.pop_all() == [b"1", b"2", b"3"]


async def test_key_is_shared_with_http(gateway: Running) -> None:
    headers = {"Idempotency-Key": "k", "Content-Type": "text/plain"}
    message_id = (await gateway.http.post("/v2/p1/queues/q/messages", content=b"1", headers=headers)).headers[
        "x-msg-id"
    ]
    async with gateway.socket("publish", "?confirm=json") as socket:
        await socket.send(once("k", message="1", **{"Content-Type": "text/plain"}))
        assert (await json_from(socket))["id"] == message_id


@pytest.mark.parametrize(
    "frame", [once("k", message="other"), once("a b", message="x"), once(5, message="x"), once("")]
)
async def test_a_bad_key_refuses_its_message_alone(gateway: Running, frame: str) -> None:
    """Messages behind it were stored, but not confirmed, so that a client that sent them again doubled them."""
    await gateway.publish(b"1", **{"Idempotency-Key": "k"})
    async with gateway.socket("publish") as socket:
        await socket.send('{"message":"2"}')
        await socket.send(frame)
        if "message" not in frame:
            await socket.send(b"x")
        await socket.send('{"message":"3"}')
        assert await socket.recv() == ""
        assert "error" in await json_from(socket)
        assert await socket.recv() == ""
    assert await gateway.pop_all() == [b"1", b"2", b"3"]


async def test_event_with_a_key_is_refused(gateway: Running) -> None:
    async with gateway.socket("publish", path=EVENT) as socket:
        await socket.send(once("k", message="x"))
        assert "queue" in (await json_from(socket))["error"]


@pytest.mark.parametrize("query", ["", "?confirm=json"])
async def test_duplicate_unique_name_is_confirmed_as_duplicate(gateway: Running, query: str) -> None:
    frames = [orjson.dumps({"message": text, "unique": name}).decode() for text, name in ("1a", "2b", "3a", "4c")]
    async with gateway.socket("publish", query) as socket:
        for frame in frames:
            await socket.send(frame)
        answers = [await socket.recv() for _ in frames]
    if query:
        ids = [orjson.loads(answer)["id"] for answer in answers]
        assert ids[0] == ids[2] and len(set(ids)) == 3
        assert orjson.loads(answers[2]) == {"id": ids[0], "duplicate": True}
    else:
        assert answers == ["", "", '{"duplicate":true}', ""]
    assert await gateway.pop_all() == [b"1", b"2", b"4"]
