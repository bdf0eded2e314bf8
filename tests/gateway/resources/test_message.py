"""One message by its id, a pop that has to be confirmed, and what travels with a message."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from curbstone.gateway.resources.reading import history
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio


async def publish(gateway: Running, body: str, query: str = "") -> str:
    reply = await gateway.http.post(MESSAGES + query, content=body)
    assert reply.status_code == 201
    return reply.headers["x-msg-id"]


async def test_message_can_be_read_by_id(gateway: Running) -> None:
    first, second = await publish(gateway, "1"), await publish(gateway, "2", "?delay=60")
    found = (await gateway.http.get(f"{MESSAGES}/{first}")).json()
    assert (found["id"], found["message"], found["state"]) == (first, "1", "rdy")
    assert (await gateway.http.get(f"{MESSAGES}/{second}?encoding=base64")).json()["message"] == "Mg=="
    assert await gateway.counts() == (1, 0, 1), "nothing changed"


async def test_settled_or_unknown_message_is_404(gateway: Running) -> None:
    first = await publish(gateway, "1")
    await publish(gateway, "2")
    await gateway.http.delete(MESSAGES)
    for message_id in (first, first.replace("-1", "-99"), "000000000000-1", "x", first.replace("-1", "-0")):
        for verb in ("GET", "DELETE"):
            assert (await gateway.http.request(verb, f"{MESSAGES}/{message_id}")).status_code == 404, message_id
    assert await gateway.counts() == (1, 0, 0)


@pytest.mark.parametrize("state", ["rdy", "delayed", "wip"])
async def test_message_can_be_cancelled_in_any_state(gateway: Running, state: str) -> None:
    message_id = await publish(gateway, "1", "?delay=60" if state == "delayed" else "")
    if state == "wip":
        (lease,) = (await gateway.http.post(f"{MESSAGES}/lease", json={})).json()["messages"]
    assert (await gateway.http.get(f"{MESSAGES}/{message_id}")).json()["state"] == state
    assert (await gateway.http.delete(f"{MESSAGES}/{message_id}")).status_code == 204
    assert await gateway.counts() == (0, 0, 0)
    if state == "wip":
        reply = await gateway.http.post(f"{MESSAGES}/ack", json={"ackIds": [lease["ackId"]]})
        assert reply.json() == {"settled": 0, "stale": [lease["ackId"]]}


async def test_a_pop_that_is_confirmed_is_settled(gateway: Running) -> None:
    await publish(gateway, "1")
    reply = await gateway.http.delete(MESSAGES + "?confirm=30")
    assert (reply.status_code, reply.content, reply.headers["x-msg-tries"]) == (200, b"1", "0")
    assert await gateway.counts() == (0, 1, 0)
    lease = f"{QUEUE}/leases/{reply.headers['x-msg-lease']}"
    assert (await gateway.http.delete(lease)).status_code == 204
    assert await gateway.counts() == (0, 0, 0)
    assert (await gateway.http.delete(lease)).status_code == 404, "it has ended"


async def test_a_pop_that_is_not_confirmed_returns(gateway: Running) -> None:
    await publish(gateway, "1")
    first = await gateway.http.delete(MESSAGES + "?confirm=0.05")
    again = await gateway.http.delete(MESSAGES + "?confirm=30&wait=30")
    assert (again.content, again.headers["x-msg-redelivered"]) == (b"1", "true")
    assert (await gateway.http.delete(f"{QUEUE}/leases/{first.headers['x-msg-lease']}")).status_code == 404
    assert (await gateway.http.delete(MESSAGES + "?confirm=30")).status_code == 204, "nothing else is there"


@pytest.mark.parametrize("confirm", ["0", "", "soon", "604801"])
async def test_invalid_confirm_takes_no_message(gateway: Running, confirm: str) -> None:
    await publish(gateway, "1")
    assert (await gateway.http.delete(f"{MESSAGES}?confirm={confirm}")).status_code == 400
    assert await gateway.counts() == (1, 0, 0)


async def test_encoding_and_trace_travel_with_a_message(gateway: Running) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"content-encoding": "gzip", "traceparent": trace, "tracestate": "a=1"}
    await gateway.http.post(MESSAGES, content=gzip.compress(b"body"), headers=headers)
    (looked,) = (await gateway.http.get(MESSAGES)).json()["messages"]
    assert [looked[name] for name in ("Content-Encoding", "traceparent", "tracestate")] == ["gzip", trace, "a=1"]
    await gateway.http.post(f"{MESSAGES}/batch", json=[looked])
    for _ in range(2):
        reply = await gateway.http.delete(MESSAGES)
        assert reply.content == b"body", "the client decodes it, as of any reply"
        assert {name: reply.headers[name] for name in headers} == headers


async def test_single_dead_letter_is_redriven(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/queues/q", json={"dead_letter": "dead"})
    await gateway.publish(b"1", b"2", b"3")
    leased = (await gateway.http.post(MESSAGES + "/lease", json={"count": 3})).json()["messages"]
    tokens = [message["ackId"] for message in leased]
    await gateway.http.post(MESSAGES + "/nack", json={"ackIds": tokens, "reject": True})
    dead = "/v2/p1/queues/dead"
    letters = (await gateway.http.get(dead + "/messages")).json()["messages"]
    wanted = {"id": letters[1]["id"]}
    reply = await gateway.http.post(dead + "/redrive", json=wanted)
    assert reply.json() == {"moved": 1, "stayed": {}, "more": False}
    assert await gateway.pop_all() == [b"2"]
    assert [item["message"] for item in (await gateway.http.get(dead + "/messages")).json()["messages"]] == ["1", "3"]
    assert (await gateway.http.post(dead + "/redrive", json=wanted)).status_code == 404, "it is not there any more"
    assert (await gateway.http.post(dead + "/redrive", json={"id": "made-up"})).status_code == 404
    assert (await gateway.http.post(dead + "/redrive", json={"id": 5})).status_code == 400


async def happened(gateway: Running, message_id: str) -> tuple[str, list[dict[str, object]]]:
    reply = await gateway.http.get(f"{MESSAGES}/{message_id}/history")
    assert reply.status_code == 200
    history = reply.json()
    assert history["id"] == message_id and "next" not in history
    times = [event.pop("time") for event in history["events"]]
    assert times == sorted(times) and times[0] > 0
    return history["state"], history["events"]


async def test_message_history_is_available_after_its_end(gateway: Running) -> None:
    await gateway.publish(b"other")
    message_id = await publish(gateway, "hello")
    published = {"event": "published", "bytes": 5}
    assert await happened(gateway, message_id) == ("rdy", [published])
    for more in ({}, {"delay": 600}):
        leased = (await gateway.http.post(MESSAGES + "/lease", json={"count": 2})).json()["messages"]
        (token,) = [message["ackId"] for message in leased if message["id"] == message_id]
        await gateway.http.post(MESSAGES + "/nack", json={"ackIds": [token], **more})
    released = {"event": "released", "group": ""}
    state, events = await happened(gateway, message_id)
    assert state == "delayed" and isinstance(events[2].pop("due"), int)
    assert events == [published, released | {"tries": 1}, released | {"tries": 2}]
    await gateway.http.delete(f"{MESSAGES}/{message_id}")
    state, events = await happened(gateway, message_id)
    assert (state, events[3:]) == ("gone", [{"event": "settled", "group": ""}])


async def test_message_history_of_one_of_many_and_of_an_unknown_id(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVENTS_AT_ONCE", 3)
    monkeypatch.setattr(history, "EVENTS_MAX", 9)
    ids = [await publish(gateway, str(n)) for n in range(20)]
    path = f"{MESSAGES}/{ids[15]}/history"
    pages = [(await gateway.http.get(path)).json()]
    while "next" in pages[-1]:
        pages.append((await gateway.http.get(path, params={"from": pages[-1]["next"]})).json())
    assert [len(page["events"]) for page in pages] == [0, 1, 0]
    later = ids[-1].rpartition("-")[0] + "-21"
    for message_id in ("made-up", later):
        assert (await gateway.http.get(f"{MESSAGES}/{message_id}/history")).status_code == 404
    assert (await gateway.http.get(path, params={"from": "x"})).status_code == 400
    assert (await gateway.http.get(path, params={"from": 1})).json() == pages[0], "from the oldest that is there"
    assert (await gateway.http.get(path, params={"from": 1 << 60})).json()["events"] == []


DEAD = "/v2/p1/queues/dead"


async def reject(gateway: Running, body: str, error: str, queue: str = QUEUE) -> str:
    """Publish a message that becomes a dead letter, and return its id."""
    reply = await gateway.http.post(f"{queue}/messages", content=body)
    (leased,) = (await gateway.http.post(f"{queue}/messages/lease", json={})).json()["messages"]
    wanted = {"reject": [{"ackId": leased["ackId"], "error": error}]}
    assert (await gateway.http.post(f"{queue}/messages/settle", json=wanted)).status_code == 200
    message_id: str = reply.headers["x-msg-id"]
    return message_id


async def of(gateway: Running, queue: str, message_id: str) -> list[dict[str, Any]]:
    reply = await gateway.http.get(f"{queue}/messages/{message_id}/history")
    assert reply.status_code == 200
    events: list[dict[str, Any]] = reply.json()["events"]
    return events


async def test_message_history_spans_dead_letter_and_redrive(gateway: Running) -> None:
    """It ended with "gone" for the id that it died under, and began with "published" for that of the dead letter."""
    await gateway.http.put(QUEUE, json={"dead_letter": "dead"})
    await gateway.http.post(f"{DEAD}/messages", content="in front")
    first = await reject(gateway, "hello", "SMTP 451 greylisted")
    listed = (await gateway.http.get(f"{DEAD}/messages")).json()["messages"]
    letter = listed[-1]["id"]
    published, death = await of(gateway, QUEUE, first)
    assert published["event"] == "published" and "from" not in published
    what = {"event": "rejected", "group": "", "reason": "rejected", "tries": 1, "error": "SMTP 451 greylisted"}
    assert {name: death[name] for name in death if name != "time"} == what | {"to": {"queue": "p1/dead", "id": letter}}
    (arrived,) = await of(gateway, DEAD, letter)
    came_from = arrived["from"]
    assert isinstance(came_from, dict) and came_from.pop("time") > 0
    what = {"reason": "rejected", "tries": 1, "error": "SMTP 451 greylisted"}
    assert came_from == what | {"queue": "p1/q", "id": first}

    assert (await gateway.http.post(f"{DEAD}/redrive", json={"id": letter})).json()["moved"] == 1
    ((again,),) = [(await gateway.http.get(MESSAGES)).json()["messages"]]
    assert (await of(gateway, DEAD, letter))[-1]["to"] == {"queue": "p1/q", "id": again["id"]}
    (returned,) = await of(gateway, QUEUE, again["id"])
    assert returned["from"] == {"queue": "p1/dead", "id": letter}
    await gateway.pop_all()
    assert [event["event"] for event in await of(gateway, QUEUE, again["id"])] == ["published", "settled"]
    assert (await of(gateway, QUEUE, first))[-1]["to"] == {"queue": "p1/dead", "id": letter}


async def test_message_history_of_dead_letters_of_several_queues(gateway: Running) -> None:
    """One redrive moves them in one transaction."""
    ids = {}
    for queue in ("a", "b"):
        await gateway.http.put(f"/v2/p1/queues/{queue}", json={"dead_letter": "dead"})
    for number in range(6):
        queue = f"/v2/p1/queues/{'ab'[number % 2]}"
        ids[await reject(gateway, str(number), "no", queue)] = queue
    letters = [(await of(gateway, ids[each], each))[-1]["to"]["id"] for each in ids]
    assert (await gateway.http.post(f"{DEAD}/redrive", json={})).json()["moved"] == 6
    for number, letter in enumerate(letters):
        target = (await of(gateway, DEAD, letter))[-1]["to"]
        queue = f"/v2/{target['queue'].replace('/', '/queues/')}"
        message = (await gateway.http.get(f"{queue}/messages/{target['id']}")).json()
        assert message["message"] == str(number)
        (returned,) = await of(gateway, queue, message["id"])
        assert returned["from"] == {"queue": "p1/dead", "id": letter}


async def test_message_history_uses_dead_letter_headers_when_the_log_is_gone(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"dead_letter": "dead", "cap": 65536})
    await gateway.http.put(DEAD, json={"cap": 131072})
    first = await reject(gateway, "hello", "no")
    for _ in range(60):
        await gateway.http.post(MESSAGES, content=bytes(4000))
        await gateway.pop_all()
    (death,) = await of(gateway, QUEUE, first)
    to = death["to"]
    assert (death["event"], death["error"]) == ("rejected", "no") and isinstance(to, dict)
    for _ in range(60):
        await gateway.http.post(f"{DEAD}/messages", content=bytes(4000))
        last = (await gateway.http.get(f"{DEAD}/messages")).json()["messages"][-1]["id"]
        await gateway.http.delete(f"{DEAD}/messages/{last}")
    (arrived,) = await of(gateway, DEAD, to["id"])
    assert (arrived["event"], arrived["bytes"]) == ("published", 5)
    assert arrived["from"]["id"] == first
    assert (await of(gateway, QUEUE, first))[-1]["to"] == to
