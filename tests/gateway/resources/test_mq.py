"""The façade of SoftLayer's MQ: its six endpoints, by the requests its document shows."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.server import ServerProcess

WAIT_S = 60


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[httpx.Client]:
    """A server where a fetched message stays away for long."""
    with ServerProcess(tmp_path / "data", "--mq-delay=600") as server, client(server) as http:
        yield http


def client(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=f"{server.url}/mq", trust_env=False, timeout=WAIT_S)


def post(mq: httpx.Client, body: str | bytes = "hello") -> str:
    reply = mq.post("/jobs/messages", content=body)
    assert (reply.status_code, reply.content) == (201, b"")
    return reply.headers["x-message-id"]


def fetch(mq: httpx.Client) -> tuple[int, str, bytes]:
    reply = mq.get("/jobs/messages")
    return reply.status_code, reply.headers.get("x-message-id", ""), reply.content


NOTHING = (204, "", b"")


def fetched(mq: httpx.Client) -> tuple[int, str, bytes]:
    deadline = time.monotonic() + WAIT_S
    while (found := fetch(mq)) == NOTHING:
        assert time.monotonic() < deadline, "nothing came"
    return found


def test_queue_can_be_created_read_and_deleted(mq: httpx.Client) -> None:
    assert mq.get("/queue001").status_code == 404
    assert mq.put("/queue001", content=b"means nothing").status_code == 201
    assert mq.put("/queue001").status_code == 201
    assert (mq.get("/queue001").status_code, mq.get("/queue001").content) == (200, b"")
    assert mq.get("/queue001/messages").status_code == 204
    assert mq.delete("/queue001").status_code == 200
    assert mq.get("/queue001").status_code == 404
    assert mq.delete("/queue001").status_code == 200


def test_a_message_is_fetched_once_and_deleted(mq: httpx.Client) -> None:
    mq.put("/jobs")
    message_id = post(mq)
    assert fetch(mq) == (200, message_id, b"hello")
    assert fetch(mq) == NOTHING
    assert mq.delete(f"/jobs/messages/{message_id}").status_code == 202
    info = mq.get("/../v2/default/queues/jobs").json()
    assert (info["rdy"], info["wip"], info["delayed"]) == (0, 0, 0)
    assert mq.delete(f"/jobs/messages/{message_id}").status_code == 202


def test_undeleted_message_is_redelivered_in_place(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--mq-delay=0.2") as server, client(server) as mq:
        mq.put("/jobs")
        first = post(mq, "1")
        assert fetch(mq) == (200, first, b"1")
        second = post(mq, "2")
        # Under load the first may be back before the second is asked for, and then it is the first again.
        seen = {fetched(mq)}
        while len(seen) < 2:
            seen.add(fetched(mq))
        assert seen == {(200, first, b"1"), (200, second, b"2")}
        mq.delete(f"/jobs/messages/{first}")
        assert fetched(mq)[1] == second
        mq.delete(f"/jobs/messages/{second}")
        assert mq.get("/../v2/default/queues/jobs").json()["rdy"] == 0


def test_message_can_be_deleted_before_a_fetch(mq: httpx.Client) -> None:
    mq.put("/jobs")
    message_id, other = post(mq), post(mq, "other")
    assert mq.delete(f"/jobs/messages/{message_id}").status_code == 202
    assert fetch(mq) == (200, other, b"other")
    assert fetch(mq) == NOTHING


def test_deleting_a_missing_message_is_answered_the_same(mq: httpx.Client) -> None:
    mq.put("/jobs")
    post(mq)
    for message_id in ("nope", "4ad814ab-213e-11e3-a9a3-0025904f6e08", "0" * 12 + "-1"):
        assert mq.delete(f"/jobs/messages/{message_id}").status_code == 202
    assert mq.delete("/missing/messages/1").status_code == 202
    assert fetch(mq)[0] == 200


def test_missing_queue_refuses_fetch_and_publish(mq: httpx.Client) -> None:
    assert mq.get("/nope/messages").status_code == 204
    assert mq.post("/nope/messages", content=b"x").status_code == 404
    assert mq.get("/nope").status_code == 404, "nothing was made by the way"


def test_deleted_queue_drops_fetched_messages(mq: httpx.Client) -> None:
    mq.put("/jobs")
    post(mq)
    post(mq)
    assert fetch(mq)[0] == 200
    assert mq.delete("/jobs").status_code == 200
    mq.put("/jobs")
    assert fetch(mq) == NOTHING


@pytest.mark.parametrize("body", [b"", bytes(range(256)) * 4096])
def test_bodies_round_trip(mq: httpx.Client, body: bytes) -> None:
    mq.put("/jobs")
    message_id = post(mq, body)
    assert fetch(mq) == (200, message_id, body)


def test_the_producers_content_type_and_metadata_are_kept(mq: httpx.Client) -> None:
    mq.put("/jobs")
    mq.post("/jobs/messages", content="<a/>", headers={"content-type": "text/xml", "x-msg-x-kind": "k"})
    reply = mq.get("/jobs/messages")
    assert (reply.headers["content-type"], reply.headers["x-msg-x-kind"]) == ("text/xml", "k")
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_messages_are_in_publish_order(mq: httpx.Client) -> None:
    mq.put("/jobs")
    ids = [post(mq, str(n)) for n in range(20)]
    assert [fetch(mq) for _ in range(20)] == [(200, message_id, b"%d" % n) for n, message_id in enumerate(ids)]


def test_confirmed_and_fetched_messages_survive_a_crash(server: ServerProcess) -> None:
    with client(server) as mq:
        mq.put("/jobs")
        ids = [post(mq, str(n)) for n in range(3)]
        assert fetch(mq)[1] == ids[0]
    server.kill()
    server.restart()
    with client(server) as mq:
        assert [fetch(mq)[1] for _ in range(3)] == ids


def test_wrong_verbs_and_names(mq: httpx.Client) -> None:
    mq.put("/jobs")
    for method, path, allowed in (
        ("PATCH", "/jobs", "GET, PUT, DELETE"),
        ("PUT", "/jobs/messages", "GET, POST"),
        ("GET", "/jobs/messages/1", "DELETE"),
    ):
        reply = mq.request(method, path)
        assert reply.status_code == 405
        assert set(allowed.split(", ")) <= set(reply.headers["allow"].split(", "))
    for path in ("/bad%20name", "/bad%20name/messages", "/" + "x" * 201):
        assert mq.get(path).status_code == 400


def test_head_takes_no_message(mq: httpx.Client) -> None:
    mq.put("/jobs")
    post(mq)
    assert mq.head("/jobs/messages").status_code == 405
    assert fetch(mq)[0] == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]
)
def test_cross_origin_page_cannot_take_messages(mq: httpx.Client, headers: dict[str, str]) -> None:
    mq.put("/jobs")
    post(mq)
    assert mq.get("/jobs/messages", headers=headers).status_code == 403
    assert mq.get("/jobs/messages", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_a_full_queue_is_503_with_a_time_to_retry(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--cap=64KiB") as server, client(server) as mq:
        mq.put("/jobs")
        stored = 0
        while (reply := mq.post("/jobs/messages", content=b"x" * 1000)).status_code == 201:
            stored += 1
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert stored >= 30
        assert mq.post("/jobs/messages", content=b"x" * 2_000_000).status_code == 413
        message_id = fetch(mq)[1]
        assert mq.delete(f"/jobs/messages/{message_id}").status_code == 202


def test_incomplete_body_stores_nothing(mq: httpx.Client) -> None:
    mq.put("/jobs")
    base = mq.base_url
    assert base.port
    with socket.create_connection((base.host, base.port), timeout=WAIT_S) as raw:
        raw.sendall(b"POST /mq/jobs/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert fetch(mq) == NOTHING


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl(mq: httpx.Client) -> None:
    def curl(*args: str) -> str:
        command = ["curl", "-sS", "-w", "%{http_code}", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    base = str(mq.base_url).rstrip("/")
    assert curl("-X", "PUT", f"{base}/queue001") == "201"
    assert curl("-d", "hello", f"{base}/queue001/messages") == "201"
    assert curl(f"{base}/queue001/messages") == "hello200"
    assert curl(f"{base}/queue001/messages") == "204"
    assert curl("-X", "DELETE", f"{base}/queue001") == "200"
