"""Declared groups and offsets over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

GROUP = QUEUE + "/groups/g"


async def declared(gateway: Running, **body: Any) -> dict[str, Any]:
    reply = await gateway.http.put(GROUP, json=body)
    assert reply.status_code == 200, reply.text
    info: dict[str, Any] = reply.json()
    return info


async def test_group_can_be_declared_read_listed_and_removed(gateway: Running) -> None:
    await gateway.publish("a", "b")
    info = await declared(gateway)
    epoch = info.pop("epoch")
    assert len(epoch) == 12
    assert info == {
        "group": "g",
        "position": 1,
        "next": 3,
        "lost": 0,
        "on_full": "hold",
        "floor": 0,
        "pending": 2,
        "declared": True,
    }
    assert (await gateway.http.get(GROUP)).json() == info | {"epoch": epoch}
    assert (await gateway.http.get(QUEUE + "/groups")).json() == {"groups": [info | {"epoch": epoch}]}
    assert (await gateway.http.get(QUEUE)).json()["options"]["groups"] == ["g"]
    assert (await declared(gateway, on_full="skip"))["on_full"] == "skip"
    for _ in range(2):
        assert (await gateway.http.delete(GROUP)).status_code == 204
    assert (await gateway.http.get(GROUP)).status_code == 404
    assert (await gateway.http.get(QUEUE + "/groups")).json() == {"groups": []}


@pytest.mark.parametrize(("start", "position"), [("latest", 3), (2, 2), ("earliest", 1), ({"timestamp": 0}, 1)])
async def test_group_starts_at_the_requested_position(gateway: Running, start: object, position: int) -> None:
    await gateway.publish("a", "b")
    assert (await declared(gateway, start=start))["position"] == position


@pytest.mark.parametrize(
    "body",
    [
        *('{"start":"now"}', '{"start":-1}', '{"start":1.5}', '{"start":true}', '{"start":null}', '{"start":9}'),
        *('{"start":{}}', '{"start":{"timestamp":"x"}}', '{"start":{"timestamp":1,"x":1}}', '{"on_full":"drop"}'),
        *('{"on_full":1}', '{"on_full":null}', '{"onFull":"skip"}', "[]", "{"),
    ],
)
async def test_a_bad_declaration_is_400(gateway: Running, body: str) -> None:
    assert (await gateway.http.put(GROUP, content=body)).status_code == 400
    assert (await gateway.http.get(GROUP)).status_code == 404


async def test_missing_group_is_404_and_invalid_name_400(gateway: Running) -> None:
    for path in ("/v2/p1/queues/none/groups", "/v2/p1/queues/none/groups/g", "/v2/p1/queues/none/offsets", GROUP):
        assert (await gateway.http.get(path)).status_code == 404
    assert (await gateway.http.put("/v2/p1/queues/none/groups/g")).status_code == 404
    assert (await gateway.http.delete("/v2/p1/queues/none/groups/g")).status_code == 404
    assert (await gateway.http.post(GROUP + "/ack", json={"upTo": 0})).status_code == 404
    assert (await gateway.http.get(QUEUE + "/offsets?group=g")).status_code == 404
    assert (await gateway.http.put(QUEUE + "/groups/a b")).status_code == 400


async def test_an_ack_is_cumulative_and_frees_the_messages(gateway: Running) -> None:
    await gateway.publish("a", "b", "c")
    epoch = (await declared(gateway))["epoch"]
    await gateway.pop_all()
    reply = await gateway.http.post(GROUP + "/ack", json={"upTo": 2, "epoch": epoch})
    assert (reply.status_code, reply.json()["position"], reply.json()["pending"]) == (200, 3, 1)
    assert (await gateway.http.post(GROUP + "/ack", json={"upTo": 1})).json()["position"] == 3
    assert [m["message"] for m in (await gateway.http.get(MESSAGES)).json()["messages"]] == ["c"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *[({"upTo": 2}, 400), ({}, 400), ({"upTo": -1}, 400), ({"upTo": "x"}, 400), ({"upTo": 0, "more": 1}, 400)],
        *[({"upTo": 0, "epoch": 5}, 400), ({"upTo": 1, "epoch": "000000000000"}, 409), ({"upTo": 1}, 200)],
    ],
)
async def test_a_bad_ack_is_refused(gateway: Running, body: dict[str, object], status: int) -> None:
    await gateway.publish("a")
    await declared(gateway)
    assert (await gateway.http.post(GROUP + "/ack", json=body)).status_code == status


async def test_latest_reader_of_a_group_wins(gateway: Running) -> None:
    await gateway.publish("a", "b", "c")
    await declared(gateway)

    async def ack(reader: str, up_to: int) -> int:
        reply = await gateway.http.post(GROUP + "/ack", json={"upTo": up_to, "reader": reader})
        assert reply.status_code == 200 or reply.json()["other_reader"] is True
        return reply.status_code

    assert [await ack("one", 1), await ack("one", 1), await ack("two", 1), await ack("two", 2)] == [200] * 4
    assert await ack("one", 3) == 409, "it would ack for the other"
    assert await ack("three", 1) == 409, "it would miss what the other is done with"
    assert [await ack("two", 3), await ack("three", 3), await ack("two", 3)] == [200, 200, 409]
    assert (await gateway.http.post(GROUP + "/ack", json={"upTo": 1, "reader": "a b"})).status_code == 400
    assert (await gateway.http.post(GROUP + "/ack", json={"upTo": 1})).status_code == 200
    await gateway.http.delete(GROUP)
    await declared(gateway)
    assert [await ack("two", 1), await ack("one", 1)] == [200, 200], "a group declared anew has had no reader"


async def test_leases_of_a_group_are_stale_after_its_ack(gateway: Running) -> None:
    await gateway.publish("a")
    await declared(gateway)
    leased = (await gateway.http.post(MESSAGES + "/lease", json={"group": "g"})).json()["messages"]
    await gateway.http.post(GROUP + "/ack", json={"upTo": 1})
    reply = await gateway.http.post(MESSAGES + "/ack", json={"ackIds": [leased[0]["ackId"]]})
    assert reply.json() == {"settled": 0, "stale": [leased[0]["ackId"]]}


async def test_offsets_have_begin_and_end_of_the_queue(gateway: Running) -> None:
    offsets = (await gateway.http.get(QUEUE + "/offsets")).json()
    epoch = offsets.pop("epoch")
    assert offsets == {"first": 1, "next": 1, "floor": 1}
    await gateway.publish("a", "b", "c")
    await declared(gateway)
    await gateway.http.delete(MESSAGES)
    await gateway.http.post(GROUP + "/ack", json={"upTo": 2})
    assert (await gateway.http.get(QUEUE + "/offsets")).json() == {"epoch": epoch, "first": 2, "next": 4, "floor": 2}
    mine = (await gateway.http.get(QUEUE + "/offsets?group=g&timestamp=0")).json()
    assert mine == {"epoch": epoch, "first": 3, "next": 4, "floor": 0, "at": 2}
    assert (await gateway.http.get(QUEUE + "/offsets?timestamp=999999999999999")).json()["at"] == 4


@pytest.mark.parametrize("query", ["wait=x", "after=-1", "timestamp=x", "group=a%20b"])
async def test_bad_parameters_are_400(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(f"{QUEUE}/offsets?{query}")).status_code == 400


async def test_offsets_request_can_wait(gateway: Running) -> None:
    waiting = asyncio.ensure_future(gateway.http.get(QUEUE + "/offsets?wait=30&after=1"))
    await gateway.polling(1)
    await gateway.publish("a")
    assert (await waiting).json()["next"] == 2
    assert (await gateway.http.get(QUEUE + "/offsets?wait=30&after=1")).json()["next"] == 2
    assert (await gateway.http.get(QUEUE + "/offsets?wait=0.01&after=2")).json()["next"] == 2


async def test_waiting_reader_is_notified_of_a_deleted_queue(gateway: Running) -> None:
    waiting = asyncio.ensure_future(gateway.http.get(QUEUE + "/offsets?wait=30&after=1"))
    await gateway.polling(1)
    await gateway.http.delete(QUEUE)
    assert (await waiting).status_code == 404


async def test_losses_of_a_group_by_a_purge_are_counted(gateway: Running) -> None:
    await gateway.publish("a", "b")
    await declared(gateway)
    assert (await gateway.http.post(QUEUE + "/purge")).json() == {"purged": 2}
    info = (await gateway.http.get(GROUP)).json()
    assert (info["position"], info["floor"], info["lost"]) == (3, 3, 2)
    assert "curbstone_messages_lost_total 2.0" in (await gateway.http.get("/metrics")).text


@pytest.mark.parametrize("on_full", ["hold", "skip"])
async def test_full_queue_refuses_or_skips_as_declared(gateway: Running, on_full: str) -> None:
    await gateway.http.put(QUEUE, json={"cap": "128KiB"})
    await declared(gateway, on_full=on_full)
    statuses = set()
    for _ in range(60):
        statuses.add((await gateway.http.post(MESSAGES, content=b"x" * 5000)).status_code)
        if (await gateway.http.delete(MESSAGES)).status_code == 204:
            break
    info = (await gateway.http.get(GROUP)).json()
    assert (await gateway.http.get(QUEUE)).json()["bytes"] <= 128 * 1024
    if on_full == "hold":
        assert statuses == {201, 507} and info["lost"] == 0
    else:
        assert statuses == {201} and info["lost"] == info["floor"] - 1 == info["position"] - 1 > 20


async def test_offsets_can_be_limited_by_bytes(gateway: Running) -> None:
    await gateway.publish(*["x" * 10_000] * 30)
    await declared(gateway)
    await gateway.http.post(GROUP + "/ack", json={"upTo": 10})
    found = (await gateway.http.get(QUEUE + "/offsets?group=g&after=11&bytes=1000000")).json()
    assert (found["until"], found["bytes_max"]) == (31, 1_000_000)
    assert 200_000 < found["bytes"] < 220_000
    nearer = (await gateway.http.get(QUEUE + "/offsets?group=g&after=11&bytes=100000")).json()
    assert 11 < nearer["until"] < 31
    assert 0 < nearer["bytes"] <= 100_000
    least = (await gateway.http.get(QUEUE + "/offsets?group=g&after=11&bytes=1")).json()
    assert 11 < least["until"] <= nearer["until"], "at least something, or a reader would never continue"
    assert (await gateway.http.get(QUEUE + "/offsets?after=31&bytes=5")).json()["until"] == 31
    staged = (await gateway.http.get(QUEUE + "/offsets?bytes=staged")).json()
    assert staged["bytes_max"] == 256 << 20
    assert (await gateway.http.get(QUEUE + "/offsets?bytes=much")).status_code == 400


async def test_journal_of_a_recreated_queue_is_refused(gateway: Running) -> None:
    await gateway.publish("a")
    epoch = (await gateway.http.get(QUEUE + "/offsets")).json()["epoch"]
    assert (await gateway.http.get(QUEUE + f"/journal?epoch={epoch}")).status_code == 200
    assert (await gateway.http.get(QUEUE + "/journal?epoch=000000000000")).status_code == 409


async def test_undeclared_group_shows_its_backlog(gateway: Running) -> None:
    """A queue that was full of messages for such a group looked empty everywhere."""
    await gateway.http.put(QUEUE, json={"cap": 65536, "groups": ["mine"]})
    sent = 0
    while (await gateway.http.post(MESSAGES, content=b"x" * 4000, params={"groups": "zz"})).status_code == 201:
        sent += 1
    assert sent > 3
    info = (await gateway.http.get(QUEUE)).json()
    assert (info["rdy"], info["wip"], info["delayed"]) == (0, 0, 0)
    zz = {"rdy": sent, "wip": 0, "delayed": 0, "declared": False}
    assert info["groups"] == {"mine": {"rdy": 0, "wip": 0, "delayed": 0, "declared": True}, "zz": zz}
    listed = (await gateway.http.get(QUEUE + "/groups")).json()["groups"]
    shown = [(group["group"], group["pending"], group["declared"]) for group in listed]
    assert shown == [("mine", 0, True), ("zz", sent, False)]
    figures = (await gateway.http.get("/metrics")).text
    labels = 'declared="false",group="zz",project="p1",queue="q"'
    assert f"curbstone_group_messages_ready{{{labels}}} {sent}.0" in figures
    assert f"curbstone_group_lag{{{labels}}} {sent}.0" in figures
    for query, count in (("&group=zz", sent), ("&group=mine", 0), ("&group=", 0), ("&group=none", 0), ("", sent)):
        assert len((await gateway.http.get(f"{MESSAGES}?limit=100{query}")).json()["messages"]) == count, query
    await gateway.http.post(QUEUE + "/purge")
    assert list((await gateway.http.get(QUEUE)).json()["groups"]) == ["mine"]
