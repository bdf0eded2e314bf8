"""Where many queues stand, and acks of many, in one call each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.gateway import Running

pytestmark = pytest.mark.anyio

OFFSETS, ACKS = "/v2/p1/offsets", "/v2/p1/acks"


async def stocked(gateway: Running, **counts: int) -> None:
    """Make queues with so many messages, and the group g on each."""
    for queue, count in counts.items():
        path = f"/v2/p1/queues/{queue}"
        assert (await gateway.http.put(path, json={"groups": ["g"]})).status_code == 201
        for number in range(count):
            assert (await gateway.http.post(path + "/messages", content=b"%d" % number)).status_code == 201


async def post(gateway: Running, path: str, **fields: Any) -> dict[str, Any]:
    reply = await gateway.http.post(path, json=fields)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_multi_queue_offsets_match_single_ones(gateway: Running) -> None:
    await stocked(gateway, a=3, b=1)
    found = await post(gateway, OFFSETS, group="g", bytes=1000, queues={"b": 1, "a": 2, "none": 0})
    assert found["missing"] == ["none"]
    for name, after in (("a", 2), ("b", 1)):
        one = await gateway.http.get(f"/v2/p1/queues/{name}/offsets?group=g&bytes=1000&after={after}")
        assert found["queues"].pop(name) == one.json()
    assert not found["queues"]
    assert (await post(gateway, OFFSETS, group="h", queues={"a": 0}))["missing"] == ["a"]
    assert (await post(gateway, OFFSETS, bytes="staged", queues={"a": 0}))["queues"]["a"]["bytes_max"] > 1000


async def test_multi_queue_wait_ends_with_the_first_new_message(gateway: Running) -> None:
    await stocked(gateway, a=1, b=1)
    known = {"a": 2, "b": 2}
    assert (await post(gateway, OFFSETS, wait=0.001, queues=known))["queues"]["a"]["next"] == 2
    waiting = asyncio.ensure_future(post(gateway, OFFSETS, wait=30, queues=known))
    await gateway.http.get("/healthz")
    await gateway.http.post("/v2/p1/queues/b/messages", content=b"m")
    async with asyncio.timeout(60):
        assert (await waiting)["queues"]["b"]["next"] == 3
    async with asyncio.timeout(60):
        await post(gateway, OFFSETS, wait=30, queues={"a": 2, "b": 2})
        await post(gateway, OFFSETS, wait=30, queues={"a": 2, "none": 0})
    waiting = asyncio.ensure_future(post(gateway, OFFSETS, wait=30, queues={"a": 2, "b": 3}))
    await gateway.http.get("/healthz")
    assert (await gateway.http.delete("/v2/p1/queues/a")).status_code == 204
    async with asyncio.timeout(60):
        assert (await waiting)["missing"] == ["a"]


async def test_multi_queue_acks_are_independent(gateway: Running) -> None:
    await stocked(gateway, a=3, b=1, c=2)
    epoch = (await gateway.http.get("/v2/p1/queues/a/offsets")).json()["epoch"]
    acks = {"a": {"upTo": 2, "epoch": epoch}, "b": {"upTo": 9}, "c": {"upTo": 1, "epoch": "0" * 12}, "d": {"upTo": 1}}
    found = await post(gateway, ACKS, group="g", reader="one", queues=acks)
    assert found["queues"]["a"]["position"] == 3
    assert {name: problem["status"] for name, problem in found["problems"].items()} == {"b": 400, "c": 409, "d": 404}
    found = await post(gateway, ACKS, group="g", reader="two", queues={"a": {"upTo": 1}, "b": {"upTo": 1}})
    assert found["problems"]["a"]["other_reader"] is True
    assert found["problems"]["a"]["acked"] == 2
    assert found["queues"]["b"]["position"] == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *[(OFFSETS, {}), (OFFSETS, {"queues": {}}), (OFFSETS, {"queues": ["a"]}), (OFFSETS, {"queues": {"a": -1}})],
        *[(OFFSETS, {"queues": {"a": "x"}}), (OFFSETS, {"queues": {"a/b": 0}}), (OFFSETS, {"queue": {"a": 0}})],
        *[(OFFSETS, {"queues": {"a": 0}, "bytes": 0}), (OFFSETS, {"queues": {"a": 0}, "group": "a b"})],
        *[(ACKS, {"queues": {"a": {"upTo": 0}}}), (ACKS, {"group": "g"}), (ACKS, {"group": "g", "queues": {"a": 0}})],
        *[(ACKS, {"group": "g", "queues": {"a": {}}}), (ACKS, {"group": "g", "queues": {"a": {"upTo": 0, "x": 1}}})],
        *[(ACKS, {"group": "g", "reader": "a b", "queues": {"a": {"upTo": 0}}})],
    ],
)
async def test_invalid_call_is_400(gateway: Running, path: str, body: dict[str, Any]) -> None:
    await stocked(gateway, a=1)
    assert (await gateway.http.post(path, json=body)).status_code == 400
