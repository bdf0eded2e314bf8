"""WebSockets end to end: the acceptance list of the original, and what it got wrong."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kit.gateway import MESSAGES, QUEUE, Running, json_from

pytestmark = pytest.mark.anyio


async def take(socket: ClientConnection, count: int) -> list[tuple[dict[str, Any], Any]]:
    return [(await json_from(socket), await socket.recv()) for _ in range(count)]


def ack(ack_id: str, what: str = "ackId", **more: Any) -> str:
    return orjson.dumps({what: ack_id, **more}).decode()


async def closed(socket: ClientConnection) -> int | None:
    """Wait for the server's close; return its code."""
    with pytest.raises(ConnectionClosed):
        await socket.recv()
    return socket.close_code


async def counts_become(gateway: Running, rdy: int, wip: int, delayed: int) -> None:
    async with asyncio.timeout(60):
        while await gateway.counts() != (rdy, wip, delayed):
            await asyncio.sleep(0.01)


async def unsettled_went_back(gateway: Running, count: int) -> None:
    await counts_become(gateway, count, 0, 0)


# ---------------------------------------------------------------- handshake


@pytest.mark.parametrize(
    ("protocol", "query", "status"),
    [
        *(("foo", "", 400), ("", "", 400), ("publish,consume", "", 400), ("Publish", "", 400)),
        *(
            ("consume", "?ack&limit=0", 400),
            ("consume", "?limit=x", 400),
            ("consume", "?limit=", 400),
            ("consume", "?encoding=rot13", 400),
        ),
        *(("consume", "?group=a%20b", 400), ("publish", "?groups=a%20b", 400), ("publish", "?confirm=xml", 400)),
        *(("publish", "?limit=-1", 400), ("publish", "?encoding=x", 400)),
    ],
)
async def test_a_bad_handshake_is_refused_with_plain_http(
    gateway: Running, protocol: str, query: str, status: int
) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await gateway.socket(protocol, query)
    response = refusal.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert orjson.loads(response.body)["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v2/p1/queues/missing/messages", 404), ("/v2/p1/queues/a%20b", 400), ("/nowhere", 404), ("/v2/p1/queues", 400)],
)
async def test_a_websocket_needs_a_queue(gateway: Running, path: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await gateway.socket("consume", path=path)
    assert refusal.value.response.status_code == status


@pytest.mark.parametrize("path", [QUEUE, MESSAGES])
async def test_both_paths_open_the_queue_and_name_the_subprotocol(gateway: Running, path: str) -> None:
    async with gateway.socket("consume,bearer.xyz", path=path) as socket:
        assert socket.subprotocol == "consume"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "https://app.example.evil.com", "http://app.example", "http://localhost:1"],
)
async def test_a_page_of_another_origin_is_refused(gateway: Running, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await gateway.socket("consume", origin=origin)
    assert refusal.value.response.status_code == 403


async def test_pages_of_the_same_host_and_of_listed_origins_may_connect(gateway: Running) -> None:
    for origin in (f"http://{gateway.address[0]}:{gateway.address[1]}", "https://app.example", "HTTPS://App.Example"):
        async with gateway.socket("consume", origin=origin):
            pass


async def test_nothing_is_compressed(gateway: Running) -> None:
    socket = gateway.socket("consume")
    async with socket as connection:
        assert connection.response and "Sec-WebSocket-Extensions" not in connection.response.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Sec-WebSocket-Version: 13\r\n", 400),
        (b"Sec-WebSocket-Version: 12\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 400),
        (b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n", 400),
    ],
)
async def test_a_broken_handshake_is_refused(gateway: Running, headers: bytes, status: int) -> None:
    reply = await gateway.raw(
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Protocol: consume\r\n%b\r\n" % (MESSAGES.encode(), headers)
    )
    assert reply.startswith(b"HTTP/1.1 %d " % status)


# ---------------------------------------------------------------- publish


async def test_metadata_then_payload_is_confirmed_once(gateway: Running) -> None:
    async with gateway.socket("publish", "?ack") as socket:
        await socket.send('{"Content-Type":"text/plain","x-msg-x-a":"1"}')
        await socket.send("hi")
        assert await socket.recv() == ""
        reply = await gateway.http.delete(MESSAGES)
        assert (reply.content, reply.headers["content-type"], reply.headers["x-msg-x-a"]) == (b"hi", "text/plain", "1")


async def test_pipelined_messages_are_confirmed_in_order(gateway: Running) -> None:
    async with gateway.socket("publish", "?confirm=json") as socket:
        for number in range(500):
            await socket.send(orjson.dumps({"message": str(number)}).decode())
        ids = [(await json_from(socket))["id"] for _ in range(500)]
    listed = (await gateway.http.get(MESSAGES + "?limit=1000")).json()["messages"]
    assert [(item["id"], item["message"]) for item in listed] == [(ids[n], str(n)) for n in range(500)]


async def test_all_message_forms_are_accepted(gateway: Running) -> None:
    async with gateway.socket("publish") as socket:
        for frame in ("", "1", "{}", b"2", b"3", '{"message":"4"}', '{"message":""}', b"", '{"x-a":"b"}', ""):
            await socket.send(frame)
        assert [await socket.recv() for _ in range(7)] == [""] * 7
    assert await gateway.pop_all() == [b"1", b"2", b"3", b"4", b"", b"", b""]


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        ('{"order":1}', "unknown member 'order'"),
        ('{"Content-Type":"text/plain","order":1}', "unknown member 'order'"),
        ('{"id":1}', "member 'id' needs a message"),
        ('{"timestamp":1,"redelivered":false}', "member 'timestamp' needs a message"),
    ],
)
async def test_invalid_json_message_is_refused_without_affecting_others(
    gateway: Running, frame: str, rule: str
) -> None:
    """Plain JSON counted as metadata: every second message was lost without an error."""
    async with gateway.socket("publish") as socket:
        await socket.send('{"message":"before"}')
        await socket.send(frame)
        await socket.send(frame)
        assert await socket.recv() == ""
        text = rule + '; a message is {"message": …}, or a metadata frame and a payload frame'
        assert await json_from(socket) == {"code": 400, "error": text}
        assert await closed(socket) == 1000
        assert socket.close_reason == text
    assert await gateway.pop_all() == [b"before"]


async def test_received_message_can_be_republished(gateway: Running) -> None:
    await gateway.publish("one", **{"x-msg-x-a": "1"})
    await gateway.publish(b"\xff")
    async with gateway.socket("consume", "?ack") as consumer, gateway.socket("publish") as producer:
        for metadata, payload in await take(consumer, 2):
            await producer.send(orjson.dumps(metadata).decode())
            await producer.send(payload)
            assert await producer.recv() == ""
    async with gateway.socket("consume", "?ack&encoding=base64&limit=4") as consumer:
        received = [await json_from(consumer) for _ in range(4)]
        async with gateway.socket("publish") as producer:
            for message in received:
                await producer.send(orjson.dumps(message).decode())
                assert await producer.recv() == ""
    assert sorted(await gateway.pop_all()) == sorted([b"one", b"\xff"] * 4)


async def test_a_fragmented_message_is_one_message(gateway: Running) -> None:
    async with gateway.socket("publish") as socket:
        await socket.send([b"a" * 30_000, b"b" * 30_000, b""])
        assert await socket.recv() == ""
    assert await gateway.pop_all() == [b"a" * 30_000 + b"b" * 30_000]


async def test_a_message_above_the_limit_is_refused_and_those_after_it_are_stored(gateway: Running) -> None:
    async with gateway.socket("publish") as socket:
        for body in (b"1", b"x" * 65_537, b"2"):
            await socket.send(body)
        assert await socket.recv() == ""
        assert (await json_from(socket))["code"] == 413
        assert await socket.recv() == ""
    assert await gateway.pop_all() == [b"1", b"2"]


@pytest.mark.parametrize("size", [600_000, 5_000_000])
async def test_oversized_frame_is_413_and_close(gateway: Running, size: int) -> None:
    async with gateway.socket("publish") as socket:
        await socket.send(b"x" * size)
        assert (await json_from(socket))["code"] == 413
        assert await closed(socket) == 1009
    assert await gateway.pop_all() == []


async def test_largest_message_is_accepted_in_any_form(gateway: Running) -> None:
    largest = b"\x01" * 65_536
    async with gateway.socket("publish") as socket:
        await socket.send(largest)
        await socket.send(orjson.dumps({"message": largest.decode()}).decode())
        await socket.send(orjson.dumps({"message": base64.b64encode(largest).decode(), "encoding": "base64"}).decode())
        assert [await socket.recv() for _ in range(3)] == [""] * 3
    assert await gateway.pop_all() == [largest] * 3


async def test_a_full_queue_refuses_and_stays_open(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": "256KiB"})
    async with gateway.socket("publish") as socket:
        for _ in range(10):
            await socket.send(b"x" * 50_000)
        answers = [await socket.recv(decode=False) for _ in range(10)]
        kept = answers.count(b"")
        assert 0 < kept < 10
        assert {orjson.loads(answer)["code"] for answer in answers if answer} == {507}
        assert len(await gateway.pop_all()) == kept
        await socket.send(b"again")
        assert await socket.recv() == ""


async def test_a_deleted_queue_ends_producers_and_consumers(gateway: Running) -> None:
    async with gateway.socket("publish") as producer, gateway.socket("consume", "?ack") as consumer:
        await gateway.http.delete(QUEUE)
        for socket in (producer, consumer):
            assert (await json_from(socket))["code"] == 404
            assert await closed(socket) == 1000


# ---------------------------------------------------------------- consume


async def test_with_ack_the_window_is_ten_and_acks_refill_it(gateway: Running) -> None:
    await gateway.publish(*[b"%d" % number for number in range(15)])
    async with gateway.socket("consume", "?ack=false") as socket:
        taken = await take(socket, 10)
        first = taken[0][0]["ackId"]
        assert [(metadata["ackId"], payload) for metadata, payload in taken] == [
            (f"{first.removesuffix('.1')}.{number + 1}", b"%d" % number) for number in range(10)
        ]
        assert await gateway.counts() == (5, 10, 0)
        await socket.send(ack(first))
        assert [payload for _, payload in await take(socket, 1)] == [b"10"]
        assert await gateway.counts() == (4, 10, 0)


async def test_ack_to_id_settles_earlier_messages_and_the_rest_is_requeued(gateway: Running) -> None:
    await gateway.publish(*[b"%d" % number for number in range(10)])
    async with gateway.socket("consume", "?ack") as socket:
        taken = await take(socket, 10)
        await socket.send(ack(taken[4][0]["ackId"], "ackToId"))
    await unsettled_went_back(gateway, 5)
    async with gateway.socket("consume", "?ack") as socket:
        taken = await take(socket, 5)
        assert [payload for _, payload in taken] == [b"5", b"6", b"7", b"8", b"9"]
        assert {metadata["redelivered"] for metadata, _ in taken} == {True}


async def test_without_ack_everything_is_pushed_and_settled(gateway: Running) -> None:
    await gateway.publish(b"1", b"2", b"3")
    async with gateway.socket("consume", "?limit=1") as socket:
        taken = await take(socket, 3)
        assert [payload for _, payload in taken] == [b"1", b"2", b"3"]
        assert not any("ackId" in metadata for metadata, _ in taken)
    assert await gateway.counts() == (0, 0, 0)


async def test_nack_and_reject(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/queues/dead")
    await gateway.http.put(QUEUE, json={"dead_letter": "dead"})
    await gateway.publish(b"a", b"b")
    async with gateway.socket("consume", "?ack&limit=2") as socket:
        one, two = [metadata["ackId"] for metadata, _ in await take(socket, 2)]
        await socket.send(ack(one, "nackId", error="not now"))
        [(metadata, payload)] = await take(socket, 1)
        assert (payload, metadata["tries"], metadata["redelivered"]) == (b"a", 1, True)
        assert metadata["ackId"] not in (one, two)
        await socket.send(ack(two, "rejectId", error="never"))
        await socket.send(ack(metadata["ackId"], "nackId", delay=600))
        await (await socket.ping())
    dead = await gateway.dead_letter()
    assert (dead["message"], dead["dead"]["error"]) == ("b", "never")
    await counts_become(gateway, 0, 0, 1)  # the dead letter can be on disk before its settle is


async def test_unsettled_messages_are_exclusive_until_the_socket_closes(gateway: Running) -> None:
    await gateway.publish(b"a")
    async with gateway.socket("consume", "?ack") as socket:
        await take(socket, 1)
        assert (await gateway.http.delete(MESSAGES)).status_code == 204
    await unsettled_went_back(gateway, 1)
    reply = await gateway.http.delete(MESSAGES)
    assert (reply.content, reply.headers["x-msg-redelivered"], reply.headers["x-msg-tries"]) == (b"a", "true", "1")


async def test_lost_connection_requeues_messages(gateway: Running) -> None:
    await gateway.publish(b"a")
    socket = await gateway.socket("consume", "?ack")
    await take(socket, 1)
    socket.transport.abort()
    await unsettled_went_back(gateway, 1)


async def test_consumers_compete(gateway: Running) -> None:
    async with gateway.socket("consume", "?ack&limit=1") as one, gateway.socket("consume", "?ack&limit=1") as other:
        await gateway.publish(b"a", b"b")
        payloads = {(await take(socket, 1))[0][1] for socket in (one, other)}
    assert payloads == {b"a", b"b"}


async def test_consumers_are_counted(gateway: Running) -> None:
    async with gateway.socket("consume"):
        assert (await gateway.http.get(QUEUE)).json()["consumers"] == 1


async def test_a_client_that_reads_slowly_gets_everything(gateway: Running) -> None:
    body = b"x" * 60_000
    await gateway.publish(*[body] * 100)
    reader, writer = await gateway.raw_socket("")
    received = 0
    async with asyncio.timeout(60):
        while received < 100 * len(body):
            received += (await reader.read(4096)).count(b"x")
    writer.close()
    assert await gateway.counts() == (0, 0, 0)


# ---------------------------------------------------------------- confirm=json, errors=frame


async def test_confirm_json_answers_settles_when_durable(gateway: Running) -> None:
    await gateway.publish(*(b"%d" % number for number in range(6)))
    async with gateway.socket("consume", "?ack&limit=10&confirm=json") as socket:
        ids = [metadata["ackId"] for metadata, _ in await take(socket, 6)]
        await socket.send(ack(ids[0]))
        assert await json_from(socket) == {"settled": ids[:1]}
        await socket.send(ack(ids[2], "ackToId"))
        assert await json_from(socket) == {"settled": ids[1:3]}
        await socket.send(ack(ids[3], "rejectId"))
        assert await json_from(socket) == {"settled": ids[3:4]}
        await socket.send(ack(ids[4], "nackId", delay=60))
        assert await json_from(socket) == {"settled": ids[4:5]}
    await counts_become(gateway, 1, 0, 1)


async def test_confirm_json_reports_stale_ids_and_keeps_the_connection(gateway: Running) -> None:
    await gateway.publish(b"0", b"1")
    async with gateway.socket("consume", "?ack&limit=10&confirm=json") as socket:
        (first, _), (second, _) = await take(socket, 2)
        for command in (ack("other.1"), ack(f"{first['ackId']}7"), ack("nonsense", "nackId"), ack("x.1", "ackToId")):
            await socket.send(command)
            assert await json_from(socket) == {"stale": [orjson.loads(command).popitem()[1]]}
        assert (await gateway.http.delete(f"{MESSAGES}/{first['id']}")).status_code == 204
        await socket.send(ack(first["ackId"]))
        assert await json_from(socket) == {"stale": [first["ackId"]]}
        await socket.send(ack(second["ackId"]))
        assert await json_from(socket) == {"settled": [second["ackId"]]}
    await counts_become(gateway, 0, 0, 0)


async def test_confirm_json_allows_window_changes(gateway: Running) -> None:
    await gateway.publish(b"0", b"1", b"2")
    async with gateway.socket("consume", "?ack&limit=1&confirm=json") as socket:
        assert (await take(socket, 1))[0][1] == b"0"
        await socket.send(orjson.dumps({"window": 3}).decode())
        assert [body for _, body in await take(socket, 2)] == [b"1", b"2"]
        await socket.send(orjson.dumps({"window": 0}).decode())
        assert (await json_from(socket))["code"] == 400


async def test_confirm_json_requires_ack(gateway: Running) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await gateway.socket("consume", "?confirm=json")
    assert refusal.value.response.status_code == 400


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [(QUEUE, "?errors=frame&limit=x", 400), ("/v2/p1/queues/missing/messages", "?ack&errors=frame", 404)],
)
async def test_errors_frame_shows_a_refusal_to_a_page(gateway: Running, path: str, query: str, status: int) -> None:
    async with gateway.socket("consume", query, path=path) as socket:
        assert socket.subprotocol == "consume"
        reported = await json_from(socket)
        assert reported["code"] == status and reported["error"]
        assert await closed(socket) == 4000 + status


async def test_errors_frame_reveals_nothing_to_a_foreign_page(gateway: Running) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await gateway.socket("consume", "?errors=frame&limit=x", origin="https://evil.example")
    assert refusal.value.response.status_code == 403
