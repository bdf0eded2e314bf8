"""Server-sent events over HTTP: a queue's leases as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

ACCEPT = {"Accept": "text/event-stream"}


class Stream:
    """The client's end of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.raw: list[str] = []

    async def block(self) -> dict[str, str]:
        """Return the fields up to the next empty line; a comment is the field ""."""
        fields = {}
        while line := await anext(self._lines):
            self.raw.append(line)
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        return fields

    async def event(self) -> tuple[str, dict[str, Any]]:
        """Return the id and the data of the next event."""
        async with asyncio.timeout(60):
            while "data" not in (fields := await self.block()):
                pass
        return fields.get("id", fields.get("event", "")), orjson.loads(fields["data"])

    async def events(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        return [await self.event() for _ in range(count)]

    async def ends(self) -> bool:
        """Wait for the end of the reply; return whether nothing but comments came before it."""
        async with asyncio.timeout(60):
            return all(not line or line.startswith(":") for line in [line async for line in self._lines])


@asynccontextmanager
async def stream(gateway: Running, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    fields = ACCEPT | {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.http.stream("GET", MESSAGES + query, headers=fields) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["cache-control"] == "no-store"
        it = Stream(reply.aiter_lines())
        assert "retry" in await it.block()
        yield it


async def settle(gateway: Running, verb: str, *ack_ids: str, **more: object) -> dict[str, Any]:
    reply = await gateway.http.post(f"{MESSAGES}/{verb}", json={"ackIds": ack_ids, **more})
    assert reply.status_code == 200
    result: dict[str, Any] = reply.json()
    return result


async def test_stream_messages_can_be_settled_by_id(gateway: Running) -> None:
    await gateway.publish("early", **{"Content-Type": "text/plain", "x-msg-x-a": "1"})
    async with stream(gateway) as events:
        ack_id, data = await events.event()
        assert data["ackId"] == ack_id
        assert (data["message"], data["Content-Type"], data["x-msg-x-a"]) == ("early", "text/plain", "1")
        assert (data["redelivered"], data["tries"]) == (False, 0)
        await gateway.publish("late")
        late_id, data = await events.event()
        assert data["message"] == "late"
        assert await gateway.counts() == (0, 2, 0)
        assert await settle(gateway, "ack", ack_id, late_id) == {"settled": 2, "stale": []}
        assert await gateway.counts() == (0, 0, 0)


async def test_no_more_than_limit_are_unsettled(gateway: Running) -> None:
    await gateway.publish(*"abcdef")
    async with stream(gateway, "?limit=2") as events:
        (first, _), (second, _) = await events.events(2)
        assert await gateway.counts() == (4, 2, 0)
        await settle(gateway, "ack", second)
        third, data = await events.event()
        assert data["message"] == "c"
        await settle(gateway, "nack", first, delay=3600)
        assert (await events.event())[1]["message"] == "d"
        await settle(gateway, "nack", third, reject=True)
        assert (await events.event())[1]["message"] == "e"
        assert await gateway.counts() == (1, 2, 1)


async def test_expired_stream_lease_is_redelivered(gateway: Running) -> None:
    await gateway.publish("a")
    async with stream(gateway, "?limit=1&seconds=0.05") as events:
        (first, one), (second, two) = await events.events(2)
        assert first != second and one["id"] == two["id"]
        assert (two["redelivered"], two["tries"]) == (True, 1)
        assert (await settle(gateway, "ack", first))["stale"] == [first]


async def test_extended_stream_lease_stays(gateway: Running) -> None:
    await gateway.publish("a", "b")
    async with stream(gateway, "?limit=1&seconds=60") as events:
        ack_id, _ = await events.event()
        await settle(gateway, "extend", ack_id, seconds=3600)
        app = gateway.server.app.gateway
        (held,) = [stream for stream in app.streams.streams]
        assert held.unsettled[ack_id].expires_ms > gateway.broker.host.now_ms() + 3_000_000
        assert (await settle(gateway, "ack", ack_id))["settled"] == 1
        assert (await events.event())[1]["message"] == "b"


async def test_messages_can_be_settled_after_the_stream_ended(gateway: Running) -> None:
    await gateway.publish("a", "b")
    async with stream(gateway) as events:
        sent = [ack_id for ack_id, _ in await events.events(2)]
    assert await settle(gateway, "ack", *sent) == {"settled": 2, "stale": []}
    assert await gateway.pop_all() == []


@pytest.mark.parametrize("is_settled", [False, True])
async def test_last_event_id_requeues_unseen_messages(gateway: Running, is_settled: bool) -> None:
    await gateway.publish(*"abcd")
    async with stream(gateway) as events:
        sent = [ack_id for ack_id, _ in await events.events(4)]
    if is_settled:
        await settle(gateway, "ack", sent[1])
    async with stream(gateway, Last_Event_ID=sent[1]) as events:
        again = await events.events(2)
        assert [data["message"] for _, data in again] == ["c", "d"]
        assert all(data["redelivered"] for _, data in again)
        # What was seen is still leased, or settled: Last-Event-ID acknowledges nothing and takes none of it back.
        assert await gateway.counts() == (0, 3 if is_settled else 4, 0)
        assert (await settle(gateway, "ack", sent[0]))["settled"] == 1
        assert (await settle(gateway, "ack", sent[2]))["stale"] == [sent[2]]


async def test_reconnecting_client_ends_its_first_stream(gateway: Running) -> None:
    await gateway.publish("a")
    async with stream(gateway) as first:
        ack_id, _ = await first.event()
        async with stream(gateway, Last_Event_ID=ack_id) as second:
            assert await first.ends()
            await gateway.publish("b")
            assert (await second.event())[1]["message"] == "b"


@pytest.mark.parametrize("last", ["", "nothing", "7.hvQmPT0p0vJzIZdXsgvYVA", "é"])
async def test_an_unknown_last_event_id_is_ignored(gateway: Running, last: str) -> None:
    await gateway.publish("a")
    headers = httpx.Headers([(b"Accept", b"text/event-stream"), (b"Last-Event-ID", last.encode())])
    async with gateway.http.stream("GET", MESSAGES, headers=headers) as reply:
        events = Stream(reply.aiter_lines())
        assert (await events.event())[1]["message"] == "a"


async def test_streams_share_the_messages(gateway: Running) -> None:
    async with stream(gateway, "?limit=3") as one, stream(gateway, "?limit=3") as other:
        await gateway.publish(*"abcdef")
        bodies = [data["message"] for events in (one, other) for _, data in await events.events(3)]
    assert sorted(bodies) == list("abcdef")


async def test_a_body_can_not_break_the_stream(gateway: Running) -> None:
    bodies: list[str | bytes] = ["id: 1\n\ndata: x\n\n", "\r\rdata: y", "\u2028\u0085\u2029", b"\xff\0", ""]
    await gateway.publish(*bodies)
    async with stream(gateway) as events:
        got = [data for _, data in await events.events(len(bodies))]
    assert [data["message"] for data in got] == [*bodies[:3], "/wA=", ""]
    assert got[3]["encoding"] == "base64"


async def test_the_encoding_can_be_chosen(gateway: Running) -> None:
    await gateway.publish("abc")
    async with stream(gateway, "?encoding=hex") as events:
        assert (await events.event())[1]["message"] == "616263"


async def test_group_has_its_own_stream(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"groups": ["g"]})
    await gateway.publish("a")
    async with stream(gateway, "?group=g") as events:
        assert (await events.event())[1]["message"] == "a"
    assert await gateway.pop_all() == [b"a"]


async def test_the_end_of_the_queue_is_an_event(gateway: Running) -> None:
    async with stream(gateway) as events:
        await gateway.http.delete(QUEUE)
        kind, data = await events.event()
        assert (kind, data["code"]) == ("error", 404)
        assert await events.ends()


async def test_the_end_of_the_server_ends_the_stream(gateway: Running) -> None:
    async with stream(gateway) as events:
        stopping = asyncio.ensure_future(gateway.server.stop())
        assert await events.ends()
    await stopping


async def test_idle_stream_sends_comments(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curbstone.gateway.resources.messages.event_stream.KEEP_ALIVE_MS", 10)
    async with stream(gateway) as events, asyncio.timeout(60):
        assert await events.block() == {"": ""}
        await gateway.publish("a")
        assert (await events.event())[1]["message"] == "a"
        assert await events.block() == {"": ""}


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?seconds=0", "?seconds=x", "?encoding=x", "?group=!"])
async def test_a_bad_parameter_is_400(gateway: Running, query: str) -> None:
    assert (await gateway.http.get(MESSAGES + query, headers=ACCEPT)).status_code == 400


async def test_missing_queue_has_no_stream(gateway: Running) -> None:
    assert (await gateway.http.get("/v2/p1/queues/none/messages", headers=ACCEPT)).status_code == 404


async def test_head_takes_no_message(gateway: Running) -> None:
    await gateway.publish("a")
    assert (await gateway.http.head(MESSAGES, headers=ACCEPT)).status_code == 200
    assert await gateway.counts() == (1, 0, 0)


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_of_another_origin_gets_no_stream(gateway: Running, headers: dict[str, str]) -> None:
    await gateway.publish("a")
    assert (await gateway.http.get(MESSAGES, headers=ACCEPT | headers)).status_code == 403
    assert await gateway.counts() == (1, 0, 0)


async def test_listed_origin_gets_a_stream(gateway: Running) -> None:
    await gateway.publish("a")
    async with stream(gateway, Origin="https://app.example") as events:
        assert (await events.event())[1]["message"] == "a"


async def test_ended_streams_are_freed(gateway: Running) -> None:
    for body in "abc":
        await gateway.publish(body)
        async with stream(gateway) as events:
            ack_id, _ = await events.event()
            await settle(gateway, "ack", ack_id)
    streams = gateway.server.app.gateway.streams
    async with asyncio.timeout(60):
        while not all(held.is_closed for held in streams.streams):
            await gateway.http.get("/healthz")
    async with stream(gateway):
        assert len(streams.streams) == 1
        assert len(streams.by_token) == 0
