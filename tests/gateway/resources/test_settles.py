"""Many leases ended in one call, each in its own way."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio


async def settle(gateway: Running, **fields: Any) -> httpx.Response:
    return await gateway.http.post(f"{MESSAGES}/settle", json=fields)


async def leased(gateway: Running, count: int) -> list[str]:
    reply = await gateway.http.post(f"{MESSAGES}/lease", json={"count": count})
    return [item["ackId"] for item in reply.json()["messages"]]


async def test_one_call_acks_rejects_and_retries_with_single_delays(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/queues/dead")
    await gateway.http.put(QUEUE, json={"dead_letter": "p1/dead"})
    await gateway.publish("acked", "soon", "late", "later", "dead")
    done, soon, late, later, dead = await leased(gateway, 5)
    reply = await settle(
        gateway,
        ack=[done],
        nack=[{"ackId": soon}, {"ackId": late, "delay": 1000, "error": "no"}, {"ackId": later, "delay": 2000.5}],
        reject=[{"ackId": dead, "error": "bad"}],
    )
    assert (reply.status_code, reply.json()) == (200, {"settled": 5, "stale": []})
    found = (await gateway.http.get(MESSAGES)).json()["messages"]
    assert [(item["message"], item["state"]) for item in found] == [
        ("soon", "rdy"),
        ("late", "delayed"),
        ("later", "delayed"),
    ]
    assert 900_000 < found[2]["due"] - found[1]["due"] < 1_100_000
    letter = await gateway.dead_letter()
    assert (letter["message"], letter["dead"]["error"]) == ("dead", "bad")


async def test_stale_ids_do_not_prevent_settling_the_rest(gateway: Running) -> None:
    await gateway.publish("1", "2")
    first, second = await leased(gateway, 2)
    assert (await settle(gateway, ack=[first])).json() == {"settled": 1, "stale": []}
    reply = await settle(gateway, ack=[first], nack=[{"ackId": second, "delay": 0}, {"ackId": "none"}])
    assert reply.json()["settled"] == 1
    assert set(reply.json()["stale"]) == {first, "none"}
    assert await gateway.pop_all() == [b"2"]


async def test_empty_settle_does_nothing(gateway: Running) -> None:
    assert (await settle(gateway)).json() == {"settled": 0, "stale": []}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"ack": "a"}, "a list of ackIds"),
        ({"ack": ["a"], "reject": [{"ackId": "a"}]}, "appears twice in one settle"),
        ({"nack": ["a"]}, "a list of objects with an ackId"),
        ({"nack": [{"delay": 5}]}, "a list of objects with an ackId"),
        ({"nack": [{"ackId": "a", "delay": "null"}]}, "a number of seconds from 0 to"),
        ({"nack": [{"ackId": 5}]}, "a list of objects with an ackId"),
        ({"nack": [{"ackId": "a", "delay": -1}]}, "a number of seconds from 0 to"),
        ({"reject": [{"ackId": "a", "delay": 1}]}, "a list of objects with an ackId"),
        ({"nacks": []}, "unknown member 'nacks'"),
        ({"nack": [{"ackId": str(n), "delay": n} for n in range(1001)]}, "at most 1000 different delays and errors"),
    ],
)
async def test_invalid_settle_settles_nothing(gateway: Running, fields: dict[str, Any], rule: str) -> None:
    await gateway.publish("1")
    [good] = await leased(gateway, 1)
    if isinstance(fields.get("ack"), list):
        fields = {**fields, "ack": [good, *fields["ack"]]}
    elif "ack" not in fields:
        fields = {**fields, "ack": [good]}
    reply = await settle(gateway, **fields)
    assert (reply.status_code, rule in reply.json()["detail"]) == (400, True), reply.text
    assert await gateway.counts() == (0, 1, 0)
