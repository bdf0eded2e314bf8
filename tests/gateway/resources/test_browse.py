"""Browsing by position over HTTP."""

from __future__ import annotations

from zlib import crc32

import orjson
import pytest
from httpx import Response

from curbstone.gateway.formats import arrow_stream
from tests.gateway.frames import rows_of
from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

BROWSE = QUEUE + "/browse"
BINARY = {"accept": "application/vnd.curbstone.batches"}


def lines(reply: Response) -> list[dict[str, object]]:
    assert reply.status_code == 200, reply.text
    return [orjson.loads(line) for line in reply.content.splitlines()]


async def test_html_page_has_a_line_per_message(gateway: Running) -> None:
    await gateway.publish("a", **{"content-type": "text/plain", "x-msg-x-color": "blue"})
    await gateway.publish(b"\xff")
    reply = await gateway.http.get(BROWSE)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.headers["next-offset"] == "3"
    epoch = reply.headers["x-curbstone-epoch"]
    first, second = lines(reply)
    timestamp = first.pop("timestamp")
    assert isinstance(timestamp, int)
    assert first == {
        "seq": 1, "id": f"{epoch}-1", "Content-Type": "text/plain", "x-msg-x-color": "blue", "redelivered": False,
        "tries": 0, "message": "a",
    }  # fmt: skip
    assert (second["encoding"], second["message"]) == ("base64", "/w==")


async def test_json_page_has_the_same_content(gateway: Running) -> None:
    await gateway.publish("a", "bb", "ccc", **{"content-type": "text/plain"})
    await gateway.http.post(MESSAGES + "/batch", json=[{"message": str(n)} for n in range(300)])
    leased = (await gateway.http.post(MESSAGES + "/lease", json={"count": 100})).json()["messages"]
    await gateway.http.post(MESSAGES + "/ack", json={"ackIds": [m["ackId"] for m in leased[1::3]]})
    await gateway.http.post(MESSAGES + "/nack", json={"ackIds": [m["ackId"] for m in leased[2::3]]})
    for query in ("", "?limit=3", "?from=3&to=120", "?max_bytes=100", "?limit=150&from=50"):
        text = await gateway.http.get(BROWSE + query)
        reply = await gateway.http.get(BROWSE + query, headers=BINARY)
        assert reply.headers["content-type"] == BINARY["accept"]
        assert reply.headers["next-offset"] == text.headers["next-offset"]
        assert reply.headers["x-curbstone-crc32"] == f"{crc32(reply.content):08x}"
        assert "x-curbstone-crc32" not in text.headers
        expected = [(m["seq"], m["timestamp"], m["tries"], str(m["message"]).encode()) for m in lines(text)]
        assert [(row.seq, row.timestamp, row.tries, row.body) for row in rows_of(reply.content)] == expected != []


async def test_pages_can_be_followed_to_the_end(gateway: Running) -> None:
    await gateway.http.post(MESSAGES + "/batch", json=[{"message": str(n)} for n in range(100)])
    seen: list[object] = []
    position = 1
    while position < 101:
        reply = await gateway.http.get(f"{BROWSE}?from={position}&to=101&limit=7")
        seen += [line["message"] for line in lines(reply)]
        position = int(reply.headers["next-offset"])
    assert seen == [str(n) for n in range(100)]
    reply = await gateway.http.get(f"{BROWSE}?from=101&to=200")
    assert (lines(reply), reply.headers["next-offset"]) == ([], "101")


async def test_headers_and_bodies_can_be_left_out(gateway: Running) -> None:
    await gateway.publish("a", **{"content-type": "text/plain"})
    (bare,) = lines(await gateway.http.get(BROWSE + "?body=false"))
    assert "message" not in bare and bare["Content-Type"] == "text/plain"
    for query, block, body in (
        ("headers=false", b"", b"a"),
        ("body=false", b"content-type:text/plain\n", b""),
        ("headers=false&body=false", b"", b""),
    ):
        (row,) = rows_of((await gateway.http.get(f"{BROWSE}?{query}", headers=BINARY)).content)
        assert (row.seq, row.headers, row.body) == (1, block, body)


async def test_delayed_leased_and_expiring_messages_are_shown_with_their_groups_and_expiry_skipped(
    gateway: Running,
) -> None:
    await gateway.http.post(MESSAGES + "?delay=100", content="a")
    await gateway.http.post(MESSAGES + "?ttl=100&groups=g,h", content="b")
    await gateway.publish("c")
    await gateway.http.post(MESSAGES + "/lease")
    reply = await gateway.http.get(BROWSE, headers=BINARY)
    assert [row.body for row in rows_of(reply.content)] == [b"a", b"b", b"c"]


async def test_browse_of_a_group_shows_its_pending_messages(gateway: Running) -> None:
    await gateway.publish("a", "b", "c")
    await gateway.http.put(QUEUE + "/groups/g")
    await gateway.http.post(QUEUE + "/groups/g/ack", json={"upTo": 2})
    await gateway.pop_all()
    await gateway.publish("d")
    for query in ("", "&from=0", "&from=3"):
        reply = await gateway.http.get(f"{BROWSE}?group=g{query}")
        assert [line["message"] for line in lines(reply)] == ["c", "d"]


async def test_lost_position_is_410_with_the_next_position(gateway: Running) -> None:
    await gateway.publish("a", "b", "c")
    await gateway.http.put(QUEUE + "/groups/g")
    await gateway.http.delete(MESSAGES)
    await gateway.http.post(QUEUE + "/purge")
    await gateway.publish("d")
    reply = await gateway.http.get(f"{BROWSE}?from=2&group=g")
    problem = reply.json()
    assert (reply.status_code, problem["status"], reply.headers["content-type"]) == (
        410,
        410,
        "application/problem+json",
    )
    assert (problem["first"], problem["lost"], len(problem["epoch"])) == (4, 3, 12)
    assert (await gateway.http.get(f"{BROWSE}?from=3")).json()["first"] == 4
    assert [line["message"] for line in lines(await gateway.http.get(f"{BROWSE}?from=4&group=g"))] == ["d"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        *[("limit=0", 400), ("limit=100001", 400), ("max_bytes=16777217", 400), ("from=x", 400), ("to=-1", 400)],
        *[("headers=no", 400), ("body=1", 400), ("group=g", 404), ("epoch=000000000000", 409), ("group=a%20b", 400)],
    ],
)
async def test_bad_parameters_are_refused(gateway: Running, query: str, status: int) -> None:
    assert (await gateway.http.get(f"{BROWSE}?{query}")).status_code == status


async def test_epoch_distinguishes_recreated_queues(gateway: Running) -> None:
    epoch = (await gateway.http.get(QUEUE + "/offsets")).json()["epoch"]
    assert (await gateway.http.get(f"{BROWSE}?epoch={epoch}")).status_code == 200
    await gateway.http.delete(QUEUE)
    await gateway.http.put(QUEUE)
    assert (await gateway.http.get(f"{BROWSE}?epoch={epoch}")).status_code == 409


@pytest.mark.parametrize("how", ["query", "header"])
async def test_a_page_can_be_an_arrow_stream(gateway: Running, how: str) -> None:
    pa = pytest.importorskip("pyarrow")
    await gateway.publish("a", "bb", **{"content-type": "text/plain", "x-msg-x-color": "blue"})
    query, headers = (
        ("?format=arrow", {}) if how == "query" else ("", {"accept": "application/vnd.apache.arrow.stream"})
    )
    reply = await gateway.http.get(BROWSE + query, headers=headers)
    assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert reply.headers["next-offset"] == "3"
    assert reply.headers["x-curbstone-crc32"] == f"{crc32(reply.content):08x}"
    rows = pa.ipc.open_stream(reply.content).read_all().to_pylist()
    assert [(row["queue"], row["seq"], row["body"], row["headers"]) for row in rows] == [
        ("p1/q", 1, b"a", [("color", "blue")]),
        ("p1/q", 2, b"bb", [("color", "blue")]),
    ]
    bare = await gateway.http.get(BROWSE + "?format=arrow&body=false&headers=false")
    assert not {"body", "headers", "key"} & set(pa.ipc.open_stream(bare.content).schema.names)
    empty = await gateway.http.get(BROWSE + "?format=arrow&from=3")
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0


async def test_without_pyarrow_an_arrow_stream_is_406(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "is_installed", lambda: False)
    reply = await gateway.http.get(BROWSE + "?format=arrow")
    assert reply.status_code == 406 and reply.json()["type"] == "/docs/problems#not-acceptable"
    assert "pip install pyarrow" in reply.json()["detail"]
    assert (await gateway.http.get(BROWSE + "?format=csv")).status_code == 400
