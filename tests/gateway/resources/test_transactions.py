"""Staged transactions over HTTP: parts in both formats, commits, limits, and what a kill leaves."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson
import pytest

from curbstone.core.engine.log.format import ENTRY
from curbstone.core.frames import FRAME, encode_frame
from curbstone.core.message import Message
from curbstone.core.options import MIB
from curbstone.core.values import PART_BYTES_MAX
from tests.kit.gateway import QUEUE, Running
from tests.kit.server import ServerProcess

BINARY = {"Content-Type": "application/vnd.curbstone.batches"}
LINES = {"Content-Type": "application/x-ndjson"}
T = "/v2/p1/transactions/t"

asynchronous = pytest.mark.anyio


def lines(*messages: dict[str, Any]) -> bytes:
    return b"".join([orjson.dumps({"queue": "q", **message}) + b"\n" for message in messages])


def frame(*bodies: bytes, queue: str = "q", block: bytes = b"", delay_ms: int = 0, extras: bytes = b"") -> bytes:
    """A frame written by hand, as clients do."""
    size = ENTRY.size + len(extras) + len(block)
    entries = [
        ENTRY.pack(size + len(body), place, delay_ms, len(block), 0, len(extras)) + extras + block + body
        for place, body in enumerate(bodies)
    ]
    size = FRAME.size - 4 + len(queue) + sum(map(len, entries))
    return FRAME.pack(size, 2, 0, len(queue), 0, len(bodies), 0, 0) + queue.encode() + b"".join(entries)


async def put(gateway: Running, body: bytes, headers: dict[str, str], part: str = "0", path: str = T) -> httpx.Response:
    return await gateway.http.put(f"{path}/parts/{part}", content=body, headers=headers)


@asynchronous
async def test_lines_and_frames_can_be_staged_and_committed(gateway: Running) -> None:
    body = lines(
        {"message": "Hello", "Content-Type": "text/plain", "x-msg-x-a": "1"}, {"message": "AAH/", "encoding": "base64"}
    )
    staged = await put(gateway, body, LINES)
    assert staged.status_code == 200 and staged.json()["messages"] == 2
    framed = frame(b"framed", b"", block=b"content-type:text/plain\nx-msg-x-b:a\\cb\n")
    assert (await put(gateway, framed, BINARY, "1")).json() == {"messages": 2, "bytes": len(framed)}
    assert await gateway.counts() == (0, 0, 0)
    look = (await gateway.http.get(T)).json()
    assert look["state"] == "staged" and look["messages"] == 4
    assert [(part["part"], part["messages"]) for part in look["parts"]] == [("0", 2), ("1", 2)]
    assert (await gateway.http.post(T + "/commit")).json() == {"committed": True, "repeated": False, "messages": 4}
    again = await gateway.http.post(T + "/commit", json={"parts": ["0", "1"]})
    assert again.json() == {"committed": True, "repeated": True, "messages": 4}
    assert (await gateway.http.get(T)).json() == {"state": "committed", "parts": [], "messages": 4}
    first = await gateway.http.delete(QUEUE + "/messages")
    assert (first.content, first.headers["content-type"], first.headers["x-msg-x-a"]) == (b"Hello", "text/plain", "1")
    assert (await gateway.http.delete(QUEUE + "/messages")).content == b"\0\1\xff"
    third = await gateway.http.delete(QUEUE + "/messages")
    assert (third.content, third.headers["x-msg-x-b"]) == (b"framed", "a:b")
    assert await gateway.pop_all() == [b""]


@asynchronous
async def test_a_number_of_a_series_with_other_content_is_a_conflict(gateway: Running) -> None:
    series = "/v2/p1/transactions/copy@7"
    await put(gateway, lines({"message": "a"}), LINES, path=series)
    for repeated in (False, True):
        reply = await gateway.http.post(series + "/commit", json={"content": "1 to 100"})
        assert reply.json()["repeated"] is repeated
    reply = await gateway.http.post(series + "/commit", json={"content": "1 to 200"})
    assert reply.status_code == 409 and "committed before, with other content" in reply.json()["detail"]
    assert (await gateway.http.post(series + "/commit", json={"content": 7})).status_code == 400


@asynchronous
async def test_committed_transaction_is_closed(gateway: Running) -> None:
    await put(gateway, lines({"message": "m"}), LINES)
    await gateway.http.post(T + "/commit")
    for reply in (await put(gateway, lines({"message": "n"}), LINES), await gateway.http.delete(T)):
        assert reply.status_code == 409 and reply.json()["committed"] is True
        assert reply.json()["type"] == "/docs/problems#already-committed"
    assert await gateway.pop_all() == [b"m"]


@asynchronous
async def test_abort_is_idempotent(gateway: Running) -> None:
    await put(gateway, lines({"message": "m"}), LINES)
    assert [(await gateway.http.delete(T)).status_code for _ in range(2)] == [204, 204]
    assert (await gateway.http.get(T)).status_code == 404
    assert (await gateway.http.post(T + "/commit")).status_code == 404


@asynchronous
@pytest.mark.parametrize("size", [1, 2, 3, 10, 27, 28, 29, 40, 57, 1000])
async def test_body_can_be_split_anywhere(gateway: Running, size: int) -> None:
    bodies = [b"%d" % number * number for number in range(30)]
    framed = frame(*bodies[:10]) + frame(*bodies[10:])

    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    for part, data, headers in (("0", framed, BINARY), ("1", lines(*[{"message": b.decode()} for b in bodies]), LINES)):
        reply = await gateway.http.put(f"{T}/parts/{part}", content=pieces(data), headers=headers)
        assert reply.json()["messages"] == 30, reply.text
    await gateway.http.post(T + "/commit")
    assert await gateway.pop_all() == bodies * 2


@asynchronous
async def test_delay_ttl_and_groups_of_lines_are_kept(gateway: Running) -> None:
    await put(
        gateway,
        lines(
            {"message": "late", "delay": 60}, {"message": "gone", "ttl": 0.001}, {"message": "named", "groups": ["g"]}
        ),
        LINES,
    )
    await put(gateway, frame(b"later", delay_ms=60_000), BINARY, "1")
    await gateway.http.post(T + "/commit")
    assert (await gateway.http.delete(QUEUE + "/messages?group=g&wait=30")).content == b"named"
    async with asyncio.timeout(60):
        while await gateway.counts() != (0, 0, 2):
            await gateway.http.get("/healthz")


@asynchronous
async def test_frame_can_set_ttl_and_groups(gateway: Running) -> None:
    extras = (60_000).to_bytes(8, "little") + b"g,"
    assert (await put(gateway, frame(b"for g, and all", block=b"a:b\n", extras=extras), BINARY)).status_code == 200
    gone = frame(b"gone at once", extras=(1).to_bytes(8, "little"))
    assert (await put(gateway, gone, BINARY, "1")).status_code == 200
    await gateway.http.post(T + "/commit")
    for group in ("?group=g&wait=30", "?wait=30"):
        taken = await gateway.http.delete(QUEUE + "/messages" + group)
        assert taken.content == b"for g, and all"
    async with asyncio.timeout(60):
        while await gateway.counts() != (0, 0, 0):
            await gateway.http.get("/healthz")


BAD_FRAMES = {
    "another kind": frame(b"m")[:4] + b"\1" + frame(b"m")[5:],
    "a cut": frame(b"message")[:-1],
    "only a head": frame(b"message")[:10],
    "no entries": FRAME.pack(FRAME.size - 4 + 1, 2, 0, 1, 0, 0, 0, 0) + b"q",
    "something behind the entries": (FRAME.size - 4 + 31).to_bytes(4, "little") + frame(b"")[4:] + bytes(6),
    "an entry larger than its frame": frame(b"m")[:29] + b"\xff" + frame(b"m")[30:],
    "another place": frame(b"m")[:33] + b"\1" + frame(b"m")[34:],
    "headers that are no lines": frame(b"m", block=b"nothing"),
    "headers with a bad escape": frame(b"m", block=b"a:\\x\n"),
    "headers that are not UTF-8": frame(b"m", block=b"a:\xff\n"),
    "headers of the server": frame(b"m", block=b"x-dead-queue:a\n"),
    "extras that are too short": frame(b"m", extras=b"1234567"),
    "a ttl that is too long": frame(b"m", extras=(3_600_001).to_bytes(8, "little")),
    "a bad group": frame(b"m", extras=bytes(8) + b"a b"),
    "no queue's name": frame(b"m", queue=""),
    "a bad queue's name": frame(b"m", queue="a b"),
    "a queue's name that is not UTF-8": frame(b"m", queue="q").replace(b"q", b"\xff"),
}  # fmt: skip


@asynchronous
@pytest.mark.parametrize("body", BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_bad_frames_are_refused_and_leave_nothing(gateway: Running, body: bytes) -> None:
    reply = await put(gateway, body, BINARY)
    assert reply.status_code == 400 and reply.json()["detail"]
    assert (await gateway.http.get(T)).status_code == 404
    assert gateway.broker.staging.bytes == 0


@asynchronous
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "line 1: bad JSON"),
        (b"[]", 400, "line 1: the line is not a JSON object"),
        (b'{"message":"m"}', 400, "bad queue"),
        (b"\n\n" + lines({"message": 1}), 400, "line 3: bad message"),
        (lines({"message": "m"}, {"queue": "none", "message": "m"}), 404, "line 2: no such queue: p1/none"),
        (lines({"message": "x" * 65_537}), 413, "line 1"),
        (lines({"message": "m", "delay": -1}), 400, "line 1: bad delay"),
    ],
)
async def test_bad_lines_are_refused_by_their_number(gateway: Running, body: bytes, status: int, said: str) -> None:
    reply = await put(gateway, body, LINES)
    assert reply.status_code == status and said in reply.json()["detail"], reply.text
    assert (await gateway.http.get(T)).status_code == 404


@asynchronous
async def test_limits_apply_before_buffering(gateway: Running) -> None:
    head = f"PUT {T}/parts/0 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: {BINARY['Content-Type']}\r\n"
    reply = await gateway.raw(f"{head}Content-Length: {PART_BYTES_MAX + 1}\r\n\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert (await put(gateway, frame(b"x" * 65_537), BINARY)).status_code == 413
    assert (await put(gateway, frame(b"m", queue="none"), BINARY)).status_code == 404
    gateway.broker.staging.area.bytes_max = 100_000
    full = await put(gateway, frame(*[b"x" * 60_000] * 2), BINARY)
    assert full.status_code == 507 and full.headers["retry-after"]
    assert (await put(gateway, b"", {"Content-Type": "text/plain"})).status_code == 415
    assert (await put(gateway, b"", BINARY, "a b")).status_code == 400
    assert (await put(gateway, b"", BINARY, path="/v2/p1/transactions/a*b")).status_code == 400
    assert (await gateway.http.post(T + "/commit", json={"parts": "0"})).status_code == 400
    assert (await gateway.http.post(T + "/commit", json={"part": ["0"]})).status_code == 400


@asynchronous
async def test_a_queue_without_room_is_507_and_the_commit_works_later(gateway: Running) -> None:
    await gateway.http.put(QUEUE, json={"cap": 65_536})
    await put(gateway, frame(*[b"x" * 1000] * 60), BINARY)
    reply = await gateway.http.post(T + "/commit")
    assert reply.status_code == 507 and reply.headers["retry-after"] and "p1/q" in reply.json()["detail"]
    await gateway.http.put(QUEUE, json={"cap": 262_144})
    assert (await gateway.http.post(T + "/commit")).json()["messages"] == 60


@asynchronous
async def test_cross_origin_calls_are_refused(gateway: Running) -> None:
    for verb, path in (("PUT", T + "/parts/0"), ("POST", T + "/commit"), ("DELETE", T)):
        reply = await gateway.http.request(verb, path, headers={"Origin": "https://evil.example", **BINARY})
        assert reply.status_code == 403
    listed = await gateway.http.get(T, headers={"Origin": "https://app.example"})
    assert listed.headers["access-control-allow-origin"] == "https://app.example"


@asynchronous
async def test_staged_bytes_are_in_the_metrics(gateway: Running) -> None:
    await put(gateway, frame(b"x" * 10_000), BINARY)
    text = (await gateway.http.get("/metrics")).text
    assert "curbstone_staged_transactions 1.0" in text and "curbstone_staged_bytes 10" in text


def test_retrying_client_commits_exactly_once_despite_kills(
    tmp_path: Path,
) -> None:
    """It does what a pipeline does: stage, commit, and after any failure start over with the same id."""
    dice = Random(7)
    transactions = 6
    wanted = Counter[bytes]()
    kills = 0
    with ServerProcess(tmp_path / "data", "--cap=64MiB") as server:
        for queue in "qr":
            assert httpx.put(f"{server.url}/v2/p1/queues/{queue}", trust_env=False).status_code == 201
        for number in range(transactions):
            parts = {
                f"{part}": {
                    queue: [b"%d %d %s %d" % (number, part, queue.encode(), n) for n in range(2000)] for queue in "qr"
                }
                for part in range(3)
            }
            for contents in parts.values():
                for bodies in contents.values():
                    wanted.update(bodies)
            attempts = 0
            while not _attempt(server, f"t{number}", parts, dice if attempts < 4 else None):
                attempts += 1
                kills += 1
                server.restart()
        server.restart()
        found = Counter[bytes]()
        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            for number in range(transactions):
                reply = client.post(f"/v2/p1/transactions/t{number}/commit")
                assert reply.json() == {"committed": True, "repeated": True, "messages": 12_000}
            for queue in "qr":
                while leased := _lease(client, queue):
                    found.update(leased)
        assert kills >= 3
        assert found == wanted
        left = sorted(path.name for path in (tmp_path / "data" / "staging").iterdir())
        assert left == ["committed", "committed.copy"]


def _attempt(
    server: ServerProcess, identifier: str, parts: dict[str, dict[str, list[bytes]]], dice: Random | None
) -> bool:
    """Stage and commit once; with dice the server is killed somewhere on the way."""
    path = f"/v2/p1/transactions/{identifier}"
    killer = dice.choice([None, "stage", "commit", "commit", "commit"]) if dice else None
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        try:
            for part, contents in parts.items():
                data = b"".join(encode_frame(queue, [Message(b) for b in bodies]) for queue, bodies in contents.items())
                if killer == "stage":
                    server.kill()
                reply = client.put(f"{path}/parts/{part}", content=data, headers=BINARY)
                if reply.status_code == 409 and reply.json().get("committed"):
                    return True
                if reply.status_code == 409:  # a commit that was cut off continues
                    return client.post(f"{path}/commit").status_code == 200
                assert reply.status_code == 200, reply.text
            if killer == "commit":
                assert dice is not None
                return _commit_and_kill(server, client, path, dice)
            reply = client.post(f"{path}/commit")
            assert reply.status_code == 200, reply.text
            return True
        except httpx.TransportError:
            return False


def _commit_and_kill(server: ServerProcess, client: httpx.Client, path: str, dice: Random) -> bool:
    """Send a commit, and kill the server once its files show that it has got somewhere."""
    host, port = server.http
    with socket.create_connection((host, port)) as raw:
        raw.sendall(b"POST %b/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" % path.encode())
        markers = server.data_dir / "staging"
        target = dice.choice(["marker", "applied"])
        queues = list((server.data_dir / "queues").iterdir())

        def size() -> int:
            return sum(file.stat().st_size for queue in queues for file in queue.glob("*.seg"))

        before = size()
        for _ in range(200_000):
            if target == "marker" and any(markers.glob("*/commit")):
                break
            if target == "applied" and size() > before + MIB // 2:
                break
            if not any(markers.glob("*/p.*")):
                break  # it is done
    server.kill()
    return False


def _lease(client: httpx.Client, queue: str) -> list[bytes]:
    path = f"/v2/p1/queues/{queue}/messages"
    leases = client.post(f"{path}/lease", json={"count": 1000}).json()["messages"]
    if leases:
        client.post(f"{path}/ack", json={"ackIds": [lease["ackId"] for lease in leases]})
    return [
        base64.b64decode(lease["message"]) if lease.get("encoding") else lease["message"].encode() for lease in leases
    ]
