"""Messages over HTTP: publish, pop, peek, batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio


async def test_message_round_trips(gateway: Running) -> None:
    sent = await gateway.http.post(
        MESSAGES, content=b"Hello", headers={"Content-Type": "text/plain", "X-Msg-X-Foo": "Bar", "x-msg-y": "dropped"}
    )
    assert (sent.status_code, sent.content) == (201, b"")
    got = await gateway.http.delete(MESSAGES)
    assert (got.status_code, got.content) == (200, b"Hello")
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["x-msg-x-foo"] == "Bar"
    assert "x-msg-y" not in got.headers
    assert got.headers["x-msg-id"] == sent.headers["x-msg-id"]
    assert (got.headers["x-msg-redelivered"], got.headers["x-msg-tries"]) == ("false", "0")
    assert abs(int(got.headers["x-msg-timestamp"]) - time.time() * 1000) < 60_000
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "no-store"
    assert (await gateway.http.delete(MESSAGES)).status_code == 204


async def test_without_a_content_type_it_is_an_octet_stream(gateway: Running) -> None:
    await gateway.publish(b"x")
    assert (await gateway.http.delete(MESSAGES)).headers["content-type"] == "application/octet-stream"


async def test_messages_are_fifo(gateway: Running) -> None:
    bodies = [b"%d" % number for number in range(50)]
    await gateway.publish(*bodies)
    assert await gateway.pop_all() == bodies


@pytest.mark.parametrize("body", [b"", b"\0\xff" * 100, b"\r\n\r\n"])
async def test_body_is_opaque(gateway: Running, body: bytes) -> None:
    await gateway.publish(body)
    assert await gateway.pop_all() == [body]


async def test_largest_message_is_accepted_and_one_byte_more_is_413(gateway: Running) -> None:
    await gateway.publish(b"x" * 65_536)
    for size in (65_537, 5_000_000):
        refused = await gateway.http.post(MESSAGES, content=b"x" * size)
        assert refused.status_code == 413
        assert refused.json()["message"]
    assert [len(body) for body in await gateway.pop_all()] == [65_536]


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 200_000])
async def test_a_chunked_body_has_the_same_limit(gateway: Running, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, size, 4096):
            yield b"x" * min(4096, size - at)

    reply = await gateway.http.post(MESSAGES, content=chunks())
    assert reply.status_code == (201 if size <= 65_536 else 413)
    assert [len(body) for body in await gateway.pop_all()] == ([size] if size <= 65_536 else [])


async def test_a_body_too_large_by_its_length_is_refused_before_it_is_sent(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"
        % MESSAGES.encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_a_queue_may_have_a_smaller_limit(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"max_message_size": 10})
    assert (await gateway.http.post(MESSAGES, content=b"x" * 11)).status_code == 413
    assert (await gateway.http.post(MESSAGES, content=b"x" * 10)).status_code == 201


async def test_a_full_queue_is_507_until_there_is_room(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": "256KiB"})
    replies = [await gateway.http.post(MESSAGES, content=b"x" * 50_000) for _ in range(10)]
    refused = replies[-1]
    assert (refused.status_code, refused.json()["title"]) == (507, "Insufficient Storage")
    assert int(refused.headers["retry-after"]) > 0
    kept = len([reply for reply in replies if reply.status_code == 201])
    assert len(await gateway.pop_all()) == kept > 0


@pytest.mark.parametrize("query", ["ttl=3601", "ttl=abc", "ttl=-1", "delay=x", "delay=-1", "groups=a%20b", "ttl=nan"])
async def test_bad_parameters_of_a_publish_are_400(gateway: Running, query: str) -> None:
    assert (await gateway.http.post(f"{MESSAGES}?{query}", content=b"x")).status_code == 400
    assert await gateway.pop_all() == []


async def test_a_ttl_really_expires_a_message(gateway: Running) -> None:
    await gateway.http.post(MESSAGES + "?ttl=0.05", content=b"short")
    await gateway.http.post(MESSAGES + "?ttl=0", content=b"long")
    async with asyncio.timeout(60):
        while await gateway.counts() != (1, 0, 0):
            pass
    assert await gateway.pop_all() == [b"long"]


async def test_delayed_message_is_delivered_when_due(gateway: Running) -> None:
    await gateway.http.post(MESSAGES + "?delay=600", content=b"later")
    assert (await gateway.http.delete(MESSAGES)).status_code == 204
    assert await gateway.counts() == (0, 0, 1)
    await gateway.http.post(MESSAGES + "?delay=0.05", content=b"soon")
    reply = await gateway.http.delete(MESSAGES + "?wait=30")
    assert reply.content == b"soon"


async def test_a_pop_waits_for_a_message(gateway: Running) -> None:
    waiting = asyncio.create_task(gateway.http.delete(MESSAGES + "?wait=30"))
    await gateway.polling(1)
    await gateway.publish(b"now")
    reply = await waiting
    assert (reply.status_code, reply.content) == (200, b"now")


async def test_pop_timeout_is_204(gateway: Running) -> None:
    assert (await gateway.http.delete(MESSAGES + "?wait=0.01")).status_code == 204


@pytest.mark.parametrize("query", ["wait=x", "wait=-1", "group=a%20b"])
async def test_bad_parameters_of_a_pop_are_400(gateway: Running, query: str) -> None:
    await gateway.publish(b"kept")
    assert (await gateway.http.delete(f"{MESSAGES}?{query}")).status_code == 400
    assert await gateway.pop_all() == [b"kept"]


async def test_disconnected_client_takes_no_message(gateway: Running) -> None:
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b"DELETE %b?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n" % MESSAGES.encode())
    await gateway.polling(1)
    writer.close()
    await gateway.polling(0)
    await gateway.publish(b"kept")
    assert await gateway.pop_all() == [b"kept"]


async def test_each_group_gets_its_messages(gateway: Running) -> None:
    await gateway.http.post(MESSAGES + "?groups=a,b", content=b"both")
    await gateway.http.post(MESSAGES + "?groups=a", content=b"one")
    assert (await gateway.http.delete(MESSAGES)).status_code == 204
    assert (await gateway.http.delete(MESSAGES + "?group=b")).content == b"both"
    assert (await gateway.http.delete(MESSAGES + "?group=b")).status_code == 204
    assert [(await gateway.http.delete(MESSAGES + "?group=a")).content for _ in range(2)] == [b"both", b"one"]


# ---------------------------------------------------------------- peek


async def peek(gateway: Running, query: str = "") -> list[dict[str, Any]]:
    reply = await gateway.http.get(MESSAGES + query)
    assert reply.status_code == 200, reply.text
    messages: list[dict[str, Any]] = reply.json()["messages"]
    return messages


async def test_peek_does_not_consume_messages(gateway: Running) -> None:
    await gateway.publish(b"a", **{"content-type": "text/plain", "x-msg-x-a": "1"})
    await gateway.publish(b"\xff")
    first, second = await peek(gateway)
    assert first.items() >= {"Content-Type": "text/plain", "x-msg-x-a": "1", "message": "a", "state": "rdy"}.items()
    assert (second["message"], second["encoding"]) == ("/w==", "base64")
    assert "encoding" not in first
    assert await gateway.counts() == (2, 0, 0)


async def test_peek_can_be_continued(gateway: Running) -> None:
    await gateway.publish(*[b"%d" % number for number in range(25)])
    first = await peek(gateway)
    assert [item["message"] for item in first] == [str(number) for number in range(10)]
    rest = await peek(gateway, f"?limit=1000&after={first[-1]['id']}")
    assert [item["message"] for item in rest] == [str(number) for number in range(10, 25)]


async def test_peek_filters_by_state(gateway: Running) -> None:
    await gateway.publish(b"wip", b"rdy")
    await gateway.http.post(MESSAGES + "?delay=600", content=b"delayed")
    await gateway.http.post(MESSAGES + "/lease")
    for state in ("wip", "rdy", "delayed"):
        [item] = await peek(gateway, f"?state={state}")
        assert (item["message"], item["state"]) == (state, state)


@pytest.mark.parametrize(("encoding", "text"), [("hex", "c3a9"), ("base64", "w6k="), ("utf8", "é")])
async def test_peek_supports_encodings(gateway: Running, encoding: str, text: str) -> None:
    await gateway.publish("é".encode())
    assert (await peek(gateway, f"?encoding={encoding}"))[0]["message"] == text


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "after=x", "state=x", "encoding=x"])
async def test_a_bad_peek_is_400(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(f"{MESSAGES}?{query}")).status_code == 400


# ---------------------------------------------------------------- batch


async def test_a_batch_is_published_in_order_with_its_metadata(gateway: Running) -> None:
    batch = [
        {"Content-Type": "text/plain", "x-msg-x-a": "1", "message": "first"},
        {"message": "AAE=", "encoding": "base64"},
        {"message": "", "delay": 600},
    ]
    reply = await gateway.http.post(MESSAGES + "/batch", json=batch)
    assert reply.status_code == 201
    messages = await peek(gateway)
    assert reply.json() == {"ids": [item["id"] for item in messages]}
    assert [item["message"] for item in messages] == ["first", "\0\1", ""]
    assert messages[0].items() >= {"Content-Type": "text/plain", "x-msg-x-a": "1"}.items()
    assert messages[2]["state"] == "delayed"


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        *(("[]", 400), ("{}", 400), ("", 400), ("[5]", 400), ("[null]", 400), ("[[]]", 400), ("[" * 5000, 400)),
        *(
            ('[{"message":"a"},{}]', 400),
            ('[{"message":"a"},{"message":5}]', 400),
            ('[{"message":"a","ttl":"x"}]', 400),
        ),
        *(('[{"message":"a","x-a":"\\r"}]', 400), ('[{"message":"?","encoding":"hex"}]', 400)),
        ('[{"message":"a"},{"message":"%s"}]' % ("x" * 65_537), 413),
    ],
)
async def test_a_bad_batch_publishes_nothing(gateway: Running, batch: str, status: int) -> None:
    reply = await gateway.http.post(MESSAGES + "/batch", content=batch)
    assert reply.status_code == status
    assert reply.json()["message"]
    assert await gateway.pop_all() == []


async def test_a_reply_of_a_peek_is_bounded_in_bytes_and_can_be_continued(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("curbstone.gateway.resources.messages.messages.PEEK_BYTES_MAX", 1000)
    await gateway.publish(*[b"x" * size for size in (10, 400, 400, 400, 5000, 5000, 1)])
    sizes: list[list[int]] = []
    after = ""
    while peeked := (await gateway.http.get(MESSAGES, params={"limit": 100, "after": after})).json()["messages"]:
        sizes.append([len(message["message"]) for message in peeked])
        after = peeked[-1]["id"]
    assert sizes == [[10, 400, 400], [400], [5000], [5000], [1]]


async def test_a_peek_of_many_small_messages_shows_them_all(gateway: Running) -> None:
    batch = [{"message": str(number)} for number in range(1000)]
    assert (await gateway.http.post(MESSAGES + "/batch", json=batch)).status_code == 201
    peeked = (await gateway.http.get(MESSAGES, params={"limit": 1000})).json()["messages"]
    assert [message["message"] for message in peeked] == [str(number) for number in range(1000)]


async def test_a_reply_of_a_lease_is_bounded_in_bytes(gateway: Running) -> None:
    for _ in range(80):
        await gateway.publish(b"x" * 65_536)
    leased = (await gateway.http.post(MESSAGES + "/lease", json={"count": 1000})).json()["messages"]
    assert len(leased) == 64
    assert (await gateway.counts())[1] == len(leased)


async def test_higher_priority_is_delivered_first_for_all_publish_paths(gateway: Running) -> None:
    await gateway.publish(b"4")
    for priority in ("0", "7", "12"):
        sent = await gateway.http.post(MESSAGES, content=priority, headers={"x-priority": priority})
        assert sent.status_code == 201
    await gateway.http.post(f"{MESSAGES}?ttl=60", content="6", headers={"x-priority": "6"})
    batch = [{"message": "8", "priority": 8}, {"message": "4 too"}, {"message": "1", "priority": 1}]
    assert (await gateway.http.post(f"{MESSAGES}/batch", json=batch)).status_code == 201
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": 5}
    structured = {"Content-Type": "application/cloudevents+json", "x-priority": "5"}
    assert (await gateway.http.post(MESSAGES, json=event, headers=structured)).status_code == 201
    info = (await gateway.http.get(QUEUE)).json()
    assert list(info["by_priority"].items()) == [(str(p), 2 if p == 4 else 1) for p in (9, 8, 7, 6, 5, 4, 1, 0)]
    (peeked, *_) = (await gateway.http.get(f"{MESSAGES}?limit=2")).json()["messages"][1:]
    assert (peeked["message"], peeked["priority"]) == ("0", 0)
    first = await gateway.http.delete(MESSAGES)
    assert (first.content, first.headers["x-priority"]) == (b"12", "12")
    assert await gateway.pop_all() == [b"8", b"7", b"6", b"5", b"4", b"4 too", b"1", b"0"]


@pytest.mark.parametrize("value", ["high", "-1", "256", "7;q=1"])
async def test_a_bad_priority_is_400_with_the_rule(gateway: Running, value: str) -> None:
    refused = await gateway.http.post(MESSAGES, content="x", headers={"x-priority": value})
    assert refused.status_code == 400
    assert f"bad priority {value!r}: it is a whole number from 0 to 9; up to 255 counts as 9" in refused.text
    batch = await gateway.http.post(f"{MESSAGES}/batch", json=[{"message": "x", "priority": value}])
    assert batch.status_code == 400 and "message 0 of the batch: bad priority" in batch.text
    assert await gateway.pop_all() == []


async def test_duplicate_unique_name_is_skipped(gateway: Running) -> None:
    first = await gateway.http.post(MESSAGES, content="1", headers={"x-unique": "a"})
    assert (first.status_code, first.headers.get("x-msg-duplicate")) == (201, None)
    for again in (MESSAGES, f"{MESSAGES}?ttl=60"):
        left_out = await gateway.http.post(again, content="2", headers={"x-unique": "a"})
        assert (left_out.status_code, left_out.headers["x-msg-duplicate"]) == (201, "1")
        assert left_out.headers["x-msg-id"] == first.headers["x-msg-id"]
    batch = [{"message": "3"}, {"message": "4", "unique": "a"}, {"message": "5", "unique": "b"}]
    answer = await gateway.http.post(f"{MESSAGES}/batch", json=batch)
    assert answer.headers["x-msg-duplicate"] == "1"
    ids = answer.json()["ids"]
    assert answer.json()["duplicates"] == [1] and ids[1] == first.headers["x-msg-id"]
    found = (await gateway.http.get(f"{MESSAGES}?limit=9")).json()["messages"]
    assert [each["id"] for each in found] == [ids[1], ids[0], ids[2]]
    assert [each.get("unique") for each in found] == ["a", None, "b"]
    assert (await gateway.http.get(QUEUE)).json()["duplicates"] == 3
    popped = await gateway.http.delete(MESSAGES)
    assert popped.headers["x-unique"] == "a"
    assert (await gateway.http.post(MESSAGES, content="6", headers={"x-unique": "a"})).headers["x-msg-id"] not in ids


async def test_repeated_batch_is_reported_although_partly_skipped(gateway: Running) -> None:
    batch = [{"message": "1", "unique": "a"}, {"message": "2", "unique": "a"}, {"message": "3"}]
    keyed = {"Idempotency-Key": '"k"'}
    first = await gateway.http.post(f"{MESSAGES}/batch", json=batch, headers=keyed)
    assert first.json()["duplicates"] == [1] and len(set(first.json()["ids"])) == 2
    again = await gateway.http.post(f"{MESSAGES}/batch", json=batch, headers=keyed)
    assert (again.json(), again.headers["x-msg-duplicate"]) == ({"ids": []}, "3")
    assert await gateway.pop_all() == [b"1", b"3"]


async def test_request_with_a_unique_name_is_refused(gateway: Running) -> None:
    refused = await gateway.http.post(f"{QUEUE}/request", content="x", headers={"x-unique": "a"})
    assert (refused.status_code, "a request can't have a unique name" in refused.text) == (400, True)


async def test_waiting_message_with_the_same_name_is_replaced(gateway: Running) -> None:
    named = {"x-replace": "a", "x-replace-max": "30"}
    await gateway.http.post(MESSAGES, content="1", headers=named)
    second = await gateway.http.post(MESSAGES, content="2", headers=named)
    await gateway.http.post(
        f"{MESSAGES}/batch", json=[{"message": "3", "replace": "b"}, {"message": "4", "replace": "b"}]
    )
    found = (await gateway.http.get(f"{MESSAGES}?limit=9")).json()["messages"]
    assert [(each["message"], each["replace"], each.get("replace_max")) for each in found] == [
        ("2", "a", 30),
        ("4", "b", None),
    ]
    assert found[0]["id"] == second.headers["x-msg-id"]
    assert (await gateway.http.get(QUEUE)).json()["replaced"] == 2
    text = " ".join((await gateway.http.get(f"{QUEUE}/explain")).json()["sentences"])
    assert "Since the start 2 messages that waited were replaced by later ones." in text
    text = (await gateway.http.get(f"{QUEUE}/explain?id={found[0]['id']}")).json()["sentences"][0]
    assert text.endswith("A later message named 'a' replaces it if it still waits then.")
    journal = (await gateway.http.get(f"{QUEUE}/journal")).text
    assert journal.count('"event":"replaced"') == 2
    both = await gateway.http.post(MESSAGES, content="x", headers={"x-replace": "a", "x-unique": "a"})
    assert (both.status_code, "a message has x-unique or x-replace, not both" in both.text) == (400, True)
