"""The journal over HTTP."""

from __future__ import annotations

import asyncio
from zlib import crc32

import orjson
import pytest

from tests.gateway.frames import journal_of
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

JOURNAL = QUEUE + "/journal"
BINARY = {"accept": "application/vnd.curbstone.journal"}
NAMES = ("", "published", "released", "settled", "rejected", "dead", "expired", "purged", "skipped")


async def eventful(gateway: Running) -> None:
    await gateway.http.put(QUEUE + "/groups/g")
    await gateway.publish("a", "bb", "ccc")
    leased = (await gateway.http.post(MESSAGES + "/lease", json={"count": 2})).json()["messages"]
    await gateway.http.post(MESSAGES + "/ack", json={"ackIds": [leased[0]["ackId"]]})
    await gateway.http.post(MESSAGES + "/nack", json={"ackIds": [leased[1]["ackId"]], "delay": 60})
    await gateway.http.post(QUEUE + "/groups/g/ack", json={"upTo": 2})


async def test_journal_is_served_as_lines_or_packed(gateway: Running) -> None:
    await eventful(gateway)
    reply = await gateway.http.get(JOURNAL)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert len(reply.headers["x-curbstone-epoch"]) == 12
    lines = [orjson.loads(line) for line in reply.content.splitlines()]
    times = [line.pop("time") for line in lines]
    dues = [line.pop("due") for line in lines if "due" in line]
    assert lines == [
        {"event": "published", "seq": 1, "count": 1, "bytes": 1},
        {"event": "published", "seq": 2, "count": 1, "bytes": 2},
        {"event": "published", "seq": 3, "count": 1, "bytes": 3},
        {"event": "settled", "seq": 1, "count": 1, "group": ""},
        {"event": "released", "seq": 2, "count": 1, "group": "", "tries": 1},
        {"event": "settled", "seq": 1, "count": 2, "group": "g"},
    ]
    assert len(dues) == 1 and dues[0] > times[-1]
    packed = await gateway.http.get(JOURNAL, headers=BINARY)
    assert packed.headers["content-type"] == BINARY["accept"]
    assert packed.headers["next-offset"] == reply.headers["next-offset"] == reply.headers["journal-end"]
    assert packed.headers["x-curbstone-crc32"] == f"{crc32(packed.content):08x}"
    first = await gateway.http.get(JOURNAL + "?limit=1")
    assert int(first.headers["next-offset"]) < int(first.headers["journal-end"]) == int(reply.headers["next-offset"])
    rows = journal_of(packed.content)
    assert [(NAMES[row.event], row.seq, row.span, row.group) for row in rows] == [
        (line["event"], line["seq"], line["count"], line.get("group", "")) for line in lines
    ]
    assert [row.time for row in rows] == times
    assert [row.value for row in rows] == [1, 2, 3, 0, dues[0], 0]


async def test_journal_pages_can_be_followed_and_wait_at_the_end(gateway: Running) -> None:
    await eventful(gateway)
    seen: list[object] = []
    position = 0
    while True:
        reply = await gateway.http.get(f"{JOURNAL}?from={position}&limit=1")
        following = int(reply.headers["next-offset"])
        if following == position:
            break
        seen += [orjson.loads(line)["event"] for line in reply.content.splitlines()]
        position = following
    assert seen == ["published"] * 3 + ["settled", "released", "settled"]
    waiting = asyncio.ensure_future(gateway.http.get(f"{JOURNAL}?from={position}&wait=30"))
    await gateway.polling(1)
    await gateway.publish("d")
    assert orjson.loads((await waiting).content)["seq"] == 4
    end = int((await waiting).headers["next-offset"])
    reply = await gateway.http.get(f"{JOURNAL}?from={end}&wait=0.01")
    assert (reply.content, reply.headers["next-offset"]) == (b"", str(end))


async def test_position_outside_the_log_is_410(gateway: Running) -> None:
    await gateway.publish("a")
    before = int((await gateway.http.get(JOURNAL + "?limit=1")).headers["next-offset"])
    await gateway.http.post(QUEUE + "/purge")
    await gateway.publish("b")
    for position in (1, before, 2**63 - 1):
        reply = await gateway.http.get(f"{JOURNAL}?from={position}")
        assert reply.status_code == 410
        first = reply.json()["first"]
    assert (await gateway.http.get(f"{JOURNAL}?from={first}")).content != b""


@pytest.mark.parametrize("query", ["from=-1", "from=9223372036854775808", "limit=0", "max_bytes=0", "wait=x"])
async def test_bad_parameters_are_400(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(f"{JOURNAL}?{query}")).status_code == 400


async def test_missing_queue_is_404(gateway: Running) -> None:
    assert (await gateway.http.get("/v2/p1/queues/none/journal")).status_code == 404
