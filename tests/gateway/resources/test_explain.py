"""Explain: the sentences say what holds; and what a queue's info and the lists of queues say."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.names import queue_name
from curbstone.core.values import Space
from tests.kit.gateway import MESSAGES, QUEUE, Running, json_from

pytestmark = pytest.mark.anyio


async def explain(gateway: Running, query: str = "") -> str:
    reply = await gateway.http.get(f"{QUEUE}/explain{query}")
    assert reply.status_code == 200, reply.text
    return " ".join(reply.json()["sentences"])


async def test_explain_empty_queue(gateway: Running) -> None:
    assert await explain(gateway) == "It has no messages."


async def test_explain_queue_without_consumers(gateway: Running) -> None:
    await gateway.publish("1")
    assert await explain(gateway) == "1 message is ready. No consumer is connected."


async def test_explain_paused_queue(gateway: Running) -> None:
    await gateway.publish("1", "2")
    await gateway.http.put(QUEUE, json={"paused": True})
    text = await explain(gateway)
    assert text.startswith("It is paused") and "2 messages are ready." in text
    async with gateway.socket("consume", "?ack&limit=2"):
        text = await explain(gateway)
        assert "Its only consumer has room." in text, "and not that they get them now"


async def test_explain_consumer_with_full_window(gateway: Running) -> None:
    await gateway.publish("1", "2", "3")
    async with gateway.socket("consume", "?ack&limit=2") as socket:
        for _ in range(4):
            await socket.recv()
        text = await explain(gateway)
        assert "Its only consumer holds as many messages as its window allows, and must settle some." in text
        assert "2 messages are delivered and not settled. A consumer over WebSocket (at 127.0.0.1:" in text
        assert ") has held 2 of them, the oldest since 20" in text, "and not only in the JSON of holders"
        (holder,) = (await gateway.http.get(f"{QUEUE}/explain")).json()["holders"]
        expected = {"kind": "consumer", "group": "", "window": 2, "unsettled": 2, "state": "full", "until_ms": 0}
        assert holder.pop("oldest_ms") > 0 and holder.pop("peer").startswith("127.0.0.1:")
        assert holder == expected | {"protocol": "websocket"}


async def test_explain_lists_keys_with_waiting_and_in_flight(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"fair": True, "key_limit": 2, "key_rate": 0.001})
    for key in "aaab":
        await gateway.http.post(MESSAGES, content=key, headers={"x-key": key})
    await gateway.publish("1")
    listed = (await gateway.http.get(f"{QUEUE}/keys")).json()
    assert (listed["queue"], listed["group"], listed["total"]) == ("p1/q", "", 3)
    assert [(each["key"], each["waiting"], each["in_flight"], "next_ms" in each) for each in listed["keys"]] == [
        *(("a", 3, 0, True), ("", 1, 0, False), ("b", 1, 0, True)),
    ]
    leased = await gateway.http.post(f"{MESSAGES}/lease", json={"count": 10})
    assert [each["message"] for each in leased.json()["messages"]] == ["1"], "the buckets of all keys are empty"
    query = "by=in_flight&limit=2"
    first, second = (await gateway.http.get(f"{QUEUE}/keys?{query}")).json()["keys"]
    assert first == {"key": "", "waiting": 0, "in_flight": 1}
    assert second.pop("next_ms") > 0 and second == {"key": "a", "waiting": 3, "in_flight": 0}
    for wrong in ("by=age", "limit=0", "limit=1001", "group=*"):
        assert (await gateway.http.get(f"{QUEUE}/keys?{wrong}")).status_code == 400
    assert (await gateway.http.get(f"{QUEUE}/keys?group=g")).json()["keys"] == []
    assert (await gateway.http.get("/v2/p1/queues/missing/keys")).status_code == 404


async def test_explain_leased_or_delayed_messages(gateway: Running) -> None:
    await gateway.publish("1")
    await gateway.http.post(f"{MESSAGES}/lease", json={"seconds": 60})
    await gateway.http.post(f"{MESSAGES}?delay=3600", content="2")
    text = await explain(gateway)
    assert "Of these 1 is leased; the first returns at 20" in text
    assert "1 message is delayed; the first is due at 20" in text


async def test_explain_messages_of_an_undeclared_group(gateway: Running) -> None:
    await gateway.http.post(f"{MESSAGES}?groups=zz", content="1")
    assert "1 message is ready for group zz, which is not declared" in await explain(gateway)
    assert (await explain(gateway, "?group=zz")).startswith(
        "Group zz is not declared: it gets only messages that are published for it. 1"
    )
    assert "1 message is ready for group zz. No consumer is connected for group zz." in await explain(
        gateway, "?group=zz"
    )


async def test_explain_full_queue(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": "64KiB"})
    while (await gateway.http.post(MESSAGES, content="x" * 4000)).status_code == 201:
        pass
    text = await explain(gateway)
    assert "It refused 1 message in the last minute; the largest message that fits now is" in text
    assert "of its cap of 64 KiB, and" in text and "when it is full, it refuses messages" in text


async def test_explain_queue_refusing_below_its_cap(gateway: Running) -> None:
    """At 77 % of a small cap, and with a message that is large for it, none of this was reported."""
    await gateway.http.put(QUEUE, json={"cap": "256KiB"})
    await gateway.publish(*["x" * 60_000] * 2)
    assert "refused" not in await explain(gateway) and "takes" not in await explain(gateway)
    for _ in range(3):
        assert (await gateway.http.post(MESSAGES, content="x" * 60_000)).status_code == 507
    text = await explain(gateway)
    assert "It refused 3 messages in the last minute; the largest message that fits now is" in text
    statuses: list[int] = []
    for _ in range(2):  # it may count on cleaning that brings back less; then it is exact
        (figures,) = (await gateway.http.get("/v2/stats")).json()["queues"]
        assert figures["cap_used_ratio"] < 0.8 and figures["messages_refused_last_minute"] >= 3
        statuses.append(
            (await gateway.http.post(MESSAGES, content="x" * int(figures["available_bytes"] - 100))).status_code
        )
        if statuses[-1] == 201:
            break
    assert statuses[-1] == 201


@pytest.mark.source
async def test_explain_full_disk_without_naming_the_cap(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said how much of its cap it takes, as if that were the cause."""
    await gateway.publish("1")
    monkeypatch.setattr(LocalQueue, "space", lambda _: Space(reserved=400_000, available=0, refused_last_minute=3))
    assert (await explain(gateway)).endswith("It refused 3 messages in the last minute; none fits now.")


async def test_explain_a_message(gateway: Running) -> None:
    reply = await gateway.http.post(MESSAGES, content="1")
    message_id = reply.headers["x-msg-id"]
    assert f"Message {message_id} is ready" in await explain(gateway, f"?id={message_id}")
    await gateway.http.delete(MESSAGES)
    assert "is not in this queue" in await explain(gateway, f"?id={message_id}")


async def test_info_has_the_oldest_message_and_the_bindings(gateway: Running) -> None:
    info = (await gateway.http.get(QUEUE)).json()
    assert "oldest" not in info and info["bindings"] == []
    reply = await gateway.http.post(MESSAGES, content="1")
    await gateway.publish("2")
    await gateway.http.put("/v2/p1/events/order/queues/q")
    info = (await gateway.http.get(QUEUE)).json()
    assert info["oldest"]["id"] == reply.headers["x-msg-id"] and info["bindings"] == ["order"]
    (found,) = (await gateway.http.get(MESSAGES + "?limit=1")).json()["messages"]
    assert info["oldest"]["timestamp"] == found["timestamp"]
    assert "oldest" not in (await gateway.http.get(QUEUE + "?group=other")).json()


async def test_lists_are_paged_and_filtered(gateway: Running) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        gateway.broker.ensure(queue_name(name, "p2"))
    names, query = [], "?prefix=a&limit=2"
    while query:
        page = (await gateway.http.get("/v2/p2/queues" + query)).json()
        names.append([queue["name"] for queue in page["queues"]])
        query = f"?prefix=a&limit=2&after={page['next']}" if "next" in page else ""
    assert names == [["a1", "a2"], ["a3"]]
    assert len((await gateway.http.get("/v2/p2/queues")).json()["queues"]) == 4
    assert (await gateway.http.get("/v2/p2/queues?limit=0")).status_code == 400
    projects = (await gateway.http.get("/v2")).json()
    assert projects == {"projects": [{"project": "p1", "queues": 1}, {"project": "p2", "queues": 4}]}
    first = (await gateway.http.get("/v2?limit=1")).json()
    assert first == {"projects": [{"project": "p1", "queues": 1}], "next": "p1"}
    rest = {"projects": [{"project": "p2", "queues": 4}]}
    assert (await gateway.http.get("/v2?limit=1&after=p1")).json() == rest
    assert (await gateway.http.get("/v2?prefix=p2")).json() == rest
    assert (await gateway.http.get("/v2?limit=x")).status_code == 400


async def test_dropped_oldest_messages_are_reported_and_counted(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": "64KiB", "overflow": "drop-oldest"})
    for _ in range(40):
        await gateway.publish("x" * 4000)
    rdy, _, _ = await gateway.counts()
    said = " ".join((await gateway.http.get(QUEUE + "/explain")).json()["sentences"])
    assert f"Since the start it has dropped {40 - rdy} messages to make room for newer ones." in said
    assert f"curbstone_messages_overflowed_total {float(40 - rdy)}" in (await gateway.http.get("/metrics")).text


async def test_explain_message_behind_another_of_its_key(gateway: Running) -> None:
    """It said that the message is ready, until something else had tried to take it."""
    replies = [await gateway.http.post(f"{QUEUE}/messages", content="1", headers={"x-key": "k"}) for _ in range(2)]
    ids = [reply.headers["x-msg-id"] for reply in replies]
    assert (await gateway.http.post(f"{QUEUE}/messages/lease", json={"count": 1})).json()["messages"]
    (sentence,) = (await gateway.http.get(f"{QUEUE}/explain?id={ids[1]}")).json()["sentences"]
    assert f"waits behind message {ids[0]} of the same key" in sentence
    (sentence,) = (await gateway.http.get(f"{QUEUE}/explain?id={ids[0]}")).json()["sentences"]
    assert "was delivered and is not settled" in sentence


async def test_explain_ready_messages_behind_others_of_their_keys(gateway: Running) -> None:
    """It said that they are ready, and that a consumer with room gets them now."""
    for key in ("a", "b", "a", "b"):
        await gateway.publish("1", **{"x-key": key})
    async with gateway.socket("consume", "?ack&limit=5") as socket:
        first = await json_from(socket)
        for _ in range(3):
            await socket.recv()
        text = await explain(gateway)
        assert "2 messages are ready. They all wait behind others of their keys that are not settled" in text
        assert f"the first behind message {first['id']}." in text
        assert "Its only consumer has room." in text
        await gateway.publish("2")
        for _ in range(2):
            await socket.recv()
        await gateway.http.put(QUEUE, json={"paused": True})
        await gateway.publish("3")
        assert "behind others" not in await explain(gateway)


async def test_explain_messages_held_by_limits(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"in_flight": 2})
    await gateway.publish("1", "2", "3")
    await gateway.http.post(f"{MESSAGES}/lease")
    text = await explain(gateway)
    assert "1 of them is held back: the option in_flight allows 2 in flight." in text
    info = (await gateway.http.get(QUEUE)).json()
    assert (info["rdy"], info["held_back"], info["limited_by"]) == (2, 1, "in_flight")
    await gateway.http.put(QUEUE, json={"in_flight": 0, "rate": 0.001, "burst": 1})
    await gateway.publish("4")
    text = await explain(gateway)
    assert "3 of them are held back: the option rate allows 0.001 deliveries a second" in text
    metrics = (await gateway.http.get("/metrics")).text
    assert 'curbstone_queue_held_back{project="p1",queue="q",why="rate"} 3.0' in metrics
    await gateway.http.put(QUEUE, json={"rate": 0})
    assert "held_back" not in (await gateway.http.get(QUEUE)).json()


async def test_explain_messages_held_by_key_limits(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"key_limit": 2, "fair": True})
    for _ in range(4):
        await gateway.http.post(MESSAGES, content="m", headers={"x-key": "a"})
    await gateway.http.post(f"{MESSAGES}/lease", json={"count": 10})
    text = await explain(gateway)
    assert "The option fair selects the next one: it has the key with the fewest messages in flight." in text
    assert "They all are held back: the options allow 2 of a key in flight (key_limit)." in text
    info = (await gateway.http.get(QUEUE)).json()
    assert (info["rdy"], info["wip"], info["held_back"], info["limited_by"]) == (2, 2, 2, "keys")
    metrics = (await gateway.http.get("/metrics")).text
    assert 'curbstone_queue_held_back{project="p1",queue="q",why="keys"} 2.0' in metrics
    waiting = (await gateway.http.get(f"{MESSAGES}?state=rdy")).json()["messages"][0]["id"]
    text = await explain(gateway, f"?id={waiting}")
    assert "waits: 2 of its key are in flight, as many as the option key_limit allows." in text
    await gateway.http.put(QUEUE, json={"key_limit": 0, "key_rate": 0.001, "key_burst": 1})
    await gateway.http.post(f"{MESSAGES}/lease", json={"count": 10})
    text = await explain(gateway)
    assert "held back: the options allow 0.001 deliveries of a key a second (key_rate); the next one may be at" in text
    text = await explain(gateway, f"?id={waiting}")
    assert "is ready: it is delivered when its key has the fewest messages in flight" in text


async def test_explain_waiting_priorities(gateway: Running) -> None:
    await gateway.publish("1", "2")
    assert "priority" not in await explain(gateway)
    for priority in ("9", "9", "0"):
        await gateway.http.post(MESSAGES, content="x", headers={"x-priority": priority})
    text = await explain(gateway)
    assert "2 of its 5 messages have priority 9 and go first; the others have 0 to 4." in text
    assert "They wait while those are ready, unless the option oldest_every is set." in text
    await gateway.http.put(QUEUE, json={"oldest_every": 10})
    assert "One of 10 deliveries goes to the oldest message, whatever its priority." in await explain(gateway)
    async with gateway.socket("consume", "?ack&limit=1") as socket:
        for _ in range(2):
            await socket.recv()
        assert "A higher priority does not overtake the messages that it holds" in await explain(gateway)
    (found,) = (await gateway.http.get(f"{MESSAGES}?limit=1")).json()["messages"]
    assert "priority" not in await explain(gateway, f"?id={found['id']}")
    last = (await gateway.http.get(MESSAGES)).json()["messages"][-1]
    assert (
        "is ready, with priority 0: messages of higher priority and earlier ones are delivered first."
        in await explain(gateway, f"?id={last['id']}")
    )


async def test_explain_messages_skipped_for_unique_names(gateway: Running) -> None:
    named = {"x-unique": "a"}
    first = await gateway.http.post(MESSAGES, content="x", headers=named)
    text = await explain(gateway, f"?id={first.headers['x-msg-id']}")
    assert text.endswith("Until it is settled in every group, no other message named 'a' is stored.")
    await gateway.http.post(MESSAGES, content="x", headers=named)
    assert "Since the start one message was not stored, because another one had its unique name." in await explain(
        gateway
    )
    await gateway.http.post(MESSAGES, content="x", headers=named)
    assert "Since the start 2 messages were not stored, because others had their unique names." in await explain(
        gateway
    )
    metrics = (await gateway.http.get("/metrics")).text
    assert 'curbstone_queue_messages_duplicate_total{project="p1",queue="q"} 2.0' in metrics
