"""Leases over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio


async def call(gateway: Running, name: str, **fields: Any) -> httpx.Response:
    return await gateway.http.post(f"{MESSAGES}/{name}", json=fields)


async def lease(gateway: Running, **fields: Any) -> list[dict[str, Any]]:
    reply = await call(gateway, "lease", **fields)
    assert reply.status_code == 200, reply.text
    messages: list[dict[str, Any]] = reply.json()["messages"]
    return messages


async def test_lease_returns_messages_with_metadata(gateway: Running) -> None:
    await gateway.publish(b"text", **{"content-type": "text/plain", "x-msg-x-a": "1"})
    await gateway.publish(b"\xff")
    first, second = await lease(gateway, count=5)
    assert first.items() >= {"Content-Type": "text/plain", "x-msg-x-a": "1", "message": "text", "tries": 0}.items()
    assert first["redelivered"] is False and first["timestamp"] > 0 and first["id"] and first["ackId"]
    assert (second["message"], second["encoding"]) == ("/w==", "base64")
    assert await gateway.counts() == (0, 2, 0)


async def test_an_empty_queue_leases_nothing(gateway: Running) -> None:
    assert await lease(gateway) == []


async def test_lease_defaults_to_one_message(gateway: Running) -> None:
    await gateway.publish(b"a", b"b")
    reply = await gateway.http.post(MESSAGES + "/lease")
    assert len(reply.json()["messages"]) == 1


async def test_a_lease_can_wait(gateway: Running) -> None:
    waiting = asyncio.create_task(lease(gateway, wait=30, count=5))
    await gateway.publish(b"now")
    assert [item["message"] for item in await waiting] == ["now"]
    assert await lease(gateway, wait=0.01) == []


async def test_expired_lease_requeues_its_message(gateway: Running) -> None:
    await gateway.publish(b"a")
    [first] = await lease(gateway, seconds=0.05)
    [second] = await lease(gateway, wait=30)
    assert (second["id"], second["redelivered"], second["tries"]) == (first["id"], True, 1)
    assert second["ackId"] != first["ackId"]
    reply = await call(gateway, "ack", ackIds=[first["ackId"]])
    assert reply.json() == {"settled": 0, "stale": [first["ackId"]]}


async def test_ack_settles_and_lists_stale_ids(gateway: Running) -> None:
    await gateway.publish(b"a", b"b")
    tokens = [item["ackId"] for item in await lease(gateway, count=2)]
    reply = await call(gateway, "ack", ackIds=[*tokens, tokens[0], "1.made-up", ""])
    assert reply.json() == {"settled": 2, "stale": ["1.made-up", ""]}
    assert await gateway.counts() == (0, 0, 0)
    assert (await call(gateway, "ack", ackIds=tokens)).json() == {"settled": 0, "stale": tokens}


async def test_nack_requeues_in_place(gateway: Running) -> None:
    await gateway.publish(b"a", b"b")
    [item] = await lease(gateway)
    assert (await call(gateway, "nack", ackIds=[item["ackId"]])).json() == {"settled": 1, "stale": []}
    assert [again["message"] for again in await lease(gateway, count=2)] == ["a", "b"]


async def test_a_nack_can_delay(gateway: Running) -> None:
    await gateway.publish(b"a")
    [item] = await lease(gateway)
    await call(gateway, "nack", ackIds=[item["ackId"]], delay=600)
    assert await gateway.counts() == (0, 0, 1)


async def test_a_rejected_message_without_a_dead_letter_queue_is_dropped(gateway: Running) -> None:
    await gateway.publish(b"a")
    [item] = await lease(gateway)
    await call(gateway, "nack", ackIds=[item["ackId"]], reject=True, error="why")
    assert await gateway.counts() == (0, 0, 0)


async def test_extended_lease_is_kept(gateway: Running) -> None:
    await gateway.publish(b"a", b"other")
    settled = 0
    while not settled:  # where all is slow, so short a lease may have ended before it is extended
        [item] = await lease(gateway, seconds=0.05, wait=30)
        reply = await call(gateway, "extend", ackIds=[item["ackId"], "stale"], seconds=600)
        settled = reply.json()["settled"]
    assert reply.json() == {"settled": 1, "stale": ["stale"]}
    [other] = await lease(gateway, seconds=0.05)  # ends after the first would have ended
    [again] = await lease(gateway, wait=30, count=2)
    assert again["id"] == other["id"]
    assert (await call(gateway, "ack", ackIds=[item["ackId"]])).json()["settled"] == 1


async def test_lease_duration_defaults_to_the_queue_option(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"lease": 0.05})
    await gateway.publish(b"a")
    await lease(gateway)
    assert [item["tries"] for item in await lease(gateway, wait=30)] == [1]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        *(("lease", body) for body in ('{"count":0}', '{"count":1001}', '{"count":"x"}', '{"count":1.5}', "[]", "5")),
        *(("lease", body) for body in ('{"seconds":0}', '{"seconds":-1}', '{"seconds":"x"}', '{"wait":"x"}', "{")),
        *(("lease", body) for body in ('{"group":5}', '{"group":"a b"}', '{"encoding":"x"}', '{"encoding":5}')),
        *(("ack", body) for body in ("", "{}", '{"ackIds":"x"}', '{"ackIds":[5]}', '{"ackIds":null}', "[]", "null")),
        *(("nack", '{"ackIds":[],' + more) for more in ('"delay":"x"}', '"delay":-1}', '"error":5}', '"reject":1}')),
        *(("extend", body) for body in ('{"ackIds":[],"seconds":0}', '{"ackIds":[],"seconds":"x"}', "{}")),
    ],
)
async def test_invalid_call_is_400(gateway: Running, name: str, body: str) -> None:
    await gateway.publish(b"kept")
    reply = await gateway.http.post(f"{MESSAGES}/{name}", content=body)
    assert reply.status_code == 400
    assert reply.json()["message"]
    assert await gateway.counts() == (1, 0, 0)
