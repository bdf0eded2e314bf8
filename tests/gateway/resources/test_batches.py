"""Batches over HTTP and WebSocket: sent, looked at, dropped, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curbstone.core.names import queue_name
from tests.kit.gateway import MESSAGES, QUEUE, Running, json_from

pytestmark = pytest.mark.anyio

DONE = "/v2/p1/queues/done/messages"


async def report(gateway: Running) -> dict[str, Any]:
    """Take the one report there is, without its times."""
    reply = await gateway.http.delete(f"{DONE}?wait=30")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    found = reply.json()
    assert reply.headers["x-batch"] == found["batch"]
    assert (await gateway.http.delete(DONE)).status_code == 204
    return {name: value for name, value in found.items() if value and not name.endswith("_ms")}


def acked(batch: str, total: int) -> dict[str, Any]:
    return {"batch": batch, "queue": "p1/q", "total": total, "acked": total}


async def test_batch_sent_in_one_request_is_reported_when_settled(gateway: Running) -> None:
    sent = await gateway.http.post(f"{MESSAGES}/batch?to=done", json=[{"message": "1"}, {"message": "2"}])
    batch = sent.json()["batch"]
    assert sent.status_code == 201 and len(sent.json()["ids"]) == 2 and len(batch) == 16
    info = (await gateway.http.get(QUEUE)).json()
    assert info["batches"] == 1
    (peeked, _) = (await gateway.http.get(f"{MESSAGES}?limit=2")).json()["messages"]
    assert (peeked["batch"], peeked["batch_size"], peeked["batch_to"]) == (batch, 2, "done")
    taken = await gateway.http.delete(MESSAGES)
    assert (taken.headers["x-batch"], taken.headers["x-batch-size"], taken.headers["x-batch-to"]) == (
        batch,
        "2",
        "done",
    )
    await gateway.http.delete(MESSAGES)
    assert await report(gateway) == acked(batch, 2)
    assert "batches" not in (await gateway.http.get(QUEUE)).json()


async def test_batch_can_be_sent_message_by_message_over_all_transports(gateway: Running) -> None:
    await gateway.publish("1", **{"x-batch": "a", "x-batch-size": "4"})
    assert (await gateway.http.post(f"{MESSAGES}?delay=0", content="2", headers={"x-batch": "a"})).status_code == 201
    array = [{"message": "3", "batch": "a", "batch_to": "done"}]
    assert (await gateway.http.post(f"{MESSAGES}/batch", json=array)).status_code == 201
    async with gateway.socket("publish", "?confirm=json") as socket:
        await socket.send(json.dumps({"message": "4", "batch": "a", "batch_size": 4}))
        assert "id" in await json_from(socket)
    found = (await gateway.http.get(f"{QUEUE}/batches")).json()["batches"]
    ends = dict.fromkeys(("acked", "dead", "expired", "purged", "replaced", "unknown"), 0)
    began = found[0].pop("begun_ms")
    assert found == [{"batch": "a", "size": 4, "to": "done", "stored": 4, "pending": 4, **ends}] and began > 0
    assert (await gateway.http.get(f"{QUEUE}/batches/a")).json() == found[0] | {"begun_ms": began}
    assert await gateway.pop_all() == [b"1", b"2", b"3", b"4"]
    assert await report(gateway) == acked("a", 4)


async def test_batch_with_any_id_can_be_dropped(gateway: Running) -> None:
    await gateway.publish("1", **{"x-batch": "a/b c", "x-batch-size": "2", "x-batch-to": "done"})
    path = f"{QUEUE}/batches/a%2Fb%20c"
    assert (await gateway.http.get(path)).json()["batch"] == "a/b c"
    assert (await gateway.http.delete(path)).status_code == 204
    for method in ("GET", "DELETE"):
        reply = await gateway.http.request(method, path)
        assert (reply.status_code, reply.json()["detail"]) == (
            404,
            "queue p1/q has no open batch 'a/b c': it has ended, or there was none",
        )
    assert await gateway.pop_all() == [b"1"]


async def test_batches_are_listed_by_id_in_pages(gateway: Running) -> None:
    for batch in "cab":
        await gateway.publish("1", **{"x-batch": batch})
    page = (await gateway.http.get(f"{QUEUE}/batches?limit=2")).json()
    assert ([each["batch"] for each in page["batches"]], page["next"]) == (["a", "b"], "b")
    page = (await gateway.http.get(f"{QUEUE}/batches?after=b")).json()
    assert ([each["batch"] for each in page["batches"]], "next" in page) == (["c"], False)


@pytest.mark.parametrize(
    ("headers", "query", "text"),
    [
        ({"x-batch": ""}, "", "bad batch: x-batch has 0 bytes; the id of a batch has 1 to 128"),
        ({"x-batch": "a", "x-batch-size": "0"}, "", "bad batch: x-batch-size is '0'; it is a whole number from 1"),
        ({"x-batch": "a", "x-batch-to": "p/q"}, "", "bad queue name 'p/q'"),
        ({"x-batch-to": "q"}, "", "bad batch: x-batch-to is for a message with x-batch, and there is none"),
        ({"x-batch": "a"}, "?groups=g", "a message of a batch is for the queue's consumers, and can't name groups"),
        ({"x-batch": "b", "x-batch-size": "3"}, "", "x-batch-size is 3, but batch b has a size of 2"),
    ],
)
async def test_invalid_batch_parameters_are_400_with_the_rule(
    gateway: Running, headers: dict[str, str], query: str, text: str
) -> None:
    await gateway.publish("1", **{"x-batch": "b", "x-batch-size": "2"})
    reply = await gateway.http.post(MESSAGES + query, content="x", headers=headers)
    assert reply.status_code == 400 and text in reply.json()["detail"]


async def test_event_message_with_a_batch_is_refused(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/events/e/queues/q")
    reply = await gateway.http.post("/v2/p1/events/e/messages", content="x", headers={"x-batch": "a"})
    assert reply.status_code == 400 and "an event can't be of one" in reply.json()["detail"]


async def test_parameter_to_is_refused_with_a_batch(gateway: Running) -> None:
    reply = await gateway.http.post(f"{MESSAGES}/batch?to=done", json=[{"message": "1", "batch": "a"}])
    assert reply.status_code == 400 and "none may name another" in reply.json()["detail"]
    reply = await gateway.http.post(f"{MESSAGES}/batch?batch=a", json=[{"message": "1"}])
    assert reply.status_code == 400 and "with the parameter to" in reply.json()["detail"]


@pytest.mark.parametrize("query", ["?to=done", "?to=done&batch=mine"])
async def test_batch_repeated_under_its_key_is_stored_once(gateway: Running, query: str) -> None:
    headers, array = {"Idempotency-Key": "k"}, [{"message": "1"}]
    once, again = [
        (await gateway.http.post(f"{MESSAGES}/batch{query}", json=array, headers=headers)).json() for _ in range(2)
    ]
    assert once == again and (once["batch"] == "mine") == ("mine" in query)
    assert await gateway.pop_all() == [b"1"]
    assert await report(gateway) == acked(once["batch"], 1)


async def test_explain_shows_open_messages_and_waiting_reports(gateway: Running) -> None:
    await gateway.publish("1", **{"x-batch": "a", "x-batch-size": "1", "x-batch-to": "done"})
    sentences = (await gateway.http.get(f"{QUEUE}/explain")).json()["sentences"]
    said = "Batch 'a' has not ended: it has 1 of its 1 messages, of which 1 is not settled."
    assert said in sentences
    (peeked,) = (await gateway.http.get(MESSAGES)).json()["messages"]
    (sentence,) = (await gateway.http.get(f"{QUEUE}/explain?id={peeked['id']}")).json()["sentences"]
    assert sentence.endswith(" It is of batch 'a'.")
    await gateway.http.put("/v2/p1/queues/done", json={"publish_paused": True})
    await gateway.publish("2", **{"x-batch": "b"})
    await gateway.pop_all()
    sentences = (await gateway.http.get(f"{QUEUE}/explain")).json()["sentences"]
    assert (
        "2 batches have not ended; the first of them, 'a', has 1 of its 1 messages, of which 0 are not settled."
        in sentences
    )
    queue = gateway.broker.get(queue_name("q", "p1"))
    assert any(each.startswith("The report of batch 'a' waits, because it was refused: ") for each in sentences), queue


async def test_metrics_count_batches(gateway: Running) -> None:
    await gateway.publish("1", **{"x-batch": "a", "x-batch-size": "1", "x-batch-to": "done"})
    await gateway.publish("2", **{"x-batch": "b"})
    await gateway.pop_all()
    assert (await report(gateway))["batch"] == "a"
    lines = (await gateway.http.get("/metrics")).text.splitlines()
    labels = '{project="p1",queue="q"}'
    assert f"curbstone_queue_batches_open{labels} 1.0" in lines
    assert f"curbstone_queue_batches_ended_total{labels} 1.0" in lines
