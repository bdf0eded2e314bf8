"""Queues over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from curbstone.core.message import Message
from curbstone.core.names import private_name
from tests.kit.gateway import MESSAGES, QUEUE, Running, json_from

pytestmark = pytest.mark.anyio

RESOURCES = [
    ("/v2/p1/queues", "GET"),
    (QUEUE, "DELETE, GET, HEAD, OPTIONS, PUT"),
    (MESSAGES, "DELETE, GET, HEAD, OPTIONS, POST"),
    (MESSAGES + "/batch", "OPTIONS, POST"),
    (MESSAGES + "/lease", "OPTIONS, POST"),
    (MESSAGES + "/ack", "OPTIONS, POST"),
    (MESSAGES + "/nack", "OPTIONS, POST"),
    (MESSAGES + "/extend", "OPTIONS, POST"),
    (QUEUE + "/purge", "OPTIONS, POST"),
    (QUEUE + "/undo", "OPTIONS, POST"),
    (QUEUE + "/redrive", "OPTIONS, POST"),
    (QUEUE + "/groups", "GET, HEAD, OPTIONS"),
    (QUEUE + "/groups/g", "DELETE, GET, HEAD, OPTIONS, PUT"),
    (QUEUE + "/groups/g/ack", "OPTIONS, POST"),
    (QUEUE + "/offsets", "GET, HEAD, OPTIONS"),
    (QUEUE + "/browse", "GET, HEAD, OPTIONS"),
    (QUEUE + "/journal", "GET, HEAD, OPTIONS"),
]


async def test_put_answers_201_whether_the_queue_is_new_or_not(gateway: Running) -> None:
    for _ in range(2):
        reply = await gateway.http.put("/v2/p1/queues/new")
        assert (reply.status_code, reply.content) == (201, b"")


async def test_put_sets_options_and_merges_them(gateway: Running) -> None:
    assert (await gateway.http.put(QUEUE, json={"ttl": 60, "max_tries": 3})).status_code == 201
    assert (await gateway.http.put(QUEUE, content='{"ttl": 30.5}')).status_code == 201
    options = (await gateway.http.get(QUEUE)).json()["options"]
    assert (options["ttl"], options["max_tries"]) == (30.5, 3)


@pytest.mark.parametrize("body", ['{"what":1}', '{"ttl":"x"}', "[]", "5", "{", "null", '{"cap":1}', "[" * 10_000])
async def test_bad_options_are_400(gateway: Running, body: str) -> None:
    reply = await gateway.http.put(QUEUE, content=body)
    assert reply.status_code == 400
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == 400 and problem["title"] == "Bad Request"
    assert problem["message"] == problem["detail"] != ""


async def test_cap_below_the_stored_bytes_is_409(gateway: Running) -> None:
    await gateway.publish(*[b"x" * 60_000] * 4)
    assert (await gateway.http.put(QUEUE, json={"cap": "64KiB"})).status_code == 409


@pytest.mark.parametrize(
    "path",
    [
        *("/v2/p!/queues/q", "/v2/p1/queues/q%20x", "/v2/p1/queues/a%2Fb", "/v2/p1/queues/%2e%2e%2f"),
        *("/v2/p1/queues/" + "q" * 201, "/v2/" + "p" * 65 + "/queues/q", "/v2/p1/queues/%C3%A9", "/v2/p1/queues/a%00"),
    ],
)
async def test_bad_names_are_400(gateway: Running, path: str) -> None:
    assert (await gateway.http.put(path)).status_code == 400


@pytest.mark.parametrize("name", [".", ".."])
async def test_dot_names_are_invalid(gateway: Running, name: str) -> None:
    host = gateway.http.base_url.netloc
    request = b"PUT /v2/p1/queues/%b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (name.encode(), host)
    assert (await gateway.raw(request)).startswith(b"HTTP/1.1 400 ")


async def test_info_has_the_counts_of_the_queue(gateway: Running) -> None:
    await gateway.publish(b"a", b"b")
    await gateway.http.post(MESSAGES + "?delay=600", content=b"later")
    info = (await gateway.http.get(QUEUE)).json()
    assert (info["project"], info["name"]) == ("p1", "q")
    assert (info["rdy"], info["wip"], info["delayed"], info["consumers"]) == (2, 0, 1, 0)
    assert 0 < info["bytes"] <= info["cap"] == info["options"]["cap"]


async def test_the_list_has_the_queues_of_the_project(gateway: Running) -> None:
    for path in ("/v2/p1/queues/b", "/v2/p1/queues/a", "/v2/other/queues/c"):
        await gateway.http.put(path)
    queues = (await gateway.http.get("/v2/p1/queues")).json()["queues"]
    assert [queue["name"] for queue in queues] == ["a", "b", "q"]
    assert (await gateway.http.get("/v2/none/queues")).json() == {"queues": []}


async def test_delete_answers_204_whether_there_is_a_queue_or_not(gateway: Running) -> None:
    await gateway.publish(b"a")
    for _ in range(2):
        reply = await gateway.http.delete(QUEUE)
        assert (reply.status_code, reply.content) == (204, b"")
    assert (await gateway.http.get(QUEUE)).status_code == 404
    await gateway.http.put(QUEUE)
    assert await gateway.counts() == (0, 0, 0)


async def test_options_has_the_websocket_url(gateway: Running) -> None:
    reply = await gateway.http.options(QUEUE)
    assert reply.status_code == 200
    assert reply.headers["location"] == f"ws://{gateway.address[0]}:{gateway.address[1]}{QUEUE}"
    assert (await gateway.http.options("/v2/p1/queues/missing")).status_code == 404


@pytest.mark.parametrize(("path", "verbs"), RESOURCES)
async def test_wrong_method_is_405_with_allow(gateway: Running, path: str, verbs: str) -> None:
    reply = await gateway.http.request("PATCH", path)
    assert reply.status_code == 405
    assert set(verbs.split(", ")) <= set(reply.headers["allow"].split(", "))


async def test_head_is_get_without_a_body(gateway: Running) -> None:
    await gateway.publish(b"a")
    for path in (QUEUE, MESSAGES):
        reply = await gateway.http.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    assert await gateway.counts() == (1, 0, 0)


@pytest.mark.parametrize("path", ["/x", "/v2/", "/v2/p1", "/v2/p1/queues/q/x", "/v2/p1/queues/", "/v1/p1/queues/q"])
async def test_an_unknown_path_is_404(gateway: Running, path: str) -> None:
    reply = await gateway.http.get(path)
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"


async def test_calls_on_a_missing_queue_are_404(gateway: Running) -> None:
    missing = "/v2/p1/queues/missing"
    for verb, path in [("GET", ""), ("POST", "/messages"), ("DELETE", "/messages"), ("GET", "/messages")]:
        assert (await gateway.http.request(verb, missing + path)).status_code == 404
    for call in ("messages/batch", "messages/lease", "messages/ack", "messages/nack", "messages/extend", "purge"):
        assert (await gateway.http.post(f"{missing}/{call}", json={})).status_code == 404


async def test_health(gateway: Running) -> None:
    alive = await gateway.http.get("/healthz")
    assert (alive.status_code, alive.json()["status"], alive.json()["sync"]) == (200, "ok", "never")
    for path in ("/readyz", "/readyz?for=publish", "/readyz?for=consume"):
        assert (await gateway.http.get(path)).status_code == 200
    assert (await gateway.http.get("/readyz?for=fun")).status_code == 400
    gateway.broker.alarms.note("queue a", "no space left on the disk")
    assert (await gateway.http.get("/readyz")).status_code == 503
    assert (await gateway.http.get("/readyz?for=publish")).status_code == 503
    consumers = await gateway.http.get("/readyz?for=consume")
    assert consumers.status_code == 200 and "no space left" in consumers.json()["reasons"][0]
    gateway.broker.alarms.over("queue a")
    gateway.broker.shared.is_stopping = True  # as between SIGTERM and the end
    ready = await gateway.http.get("/readyz")
    assert ready.status_code == 503 and ready.json()["reasons"]
    assert (await gateway.http.get("/readyz?for=consume")).status_code == 503
    assert int(ready.headers["retry-after"]) > 0
    assert (await gateway.http.get("/healthz")).status_code == 200
    refused = await gateway.http.post(MESSAGES, content=b"late")
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0


async def test_purge_keeps_unsettled_messages(gateway: Running) -> None:
    await gateway.publish(b"wip", b"a", b"b")
    await gateway.http.post(MESSAGES + "?delay=600", content=b"later")
    await gateway.http.post(MESSAGES + "/lease")
    assert (await gateway.http.post(QUEUE + "/purge")).json() == {"purged": 3}
    assert await gateway.counts() == (0, 1, 0)


async def test_undo_restores_settled_messages(gateway: Running) -> None:
    await gateway.publish(b"a", b"b")
    first = (await gateway.http.get(MESSAGES)).json()["messages"][0]["id"]
    assert (await gateway.http.delete(MESSAGES)).content == b"a"
    assert (await gateway.http.post(QUEUE + "/purge", json={"keep": True})).json() == {"purged": 1}
    none = {"restored": 0, "gone": 0, "expired": 0, "more": False, "damaged": False}
    assert (await gateway.http.post(QUEUE + "/undo", json={"group": "other"})).json() == none
    one = await gateway.http.post(QUEUE + "/undo", json={"id": first, "within": 3600})
    assert one.json() == {**none, "restored": 1}
    assert (await gateway.http.post(QUEUE + "/undo")).json() == {**none, "restored": 1}
    found = (await gateway.http.get(MESSAGES)).json()["messages"]
    assert [(message["id"], message["message"]) for message in found][0] == (first, "a")
    assert [message["message"] for message in found] == ["a", "b"]
    events = (await gateway.http.get(f"{MESSAGES}/{first}/history")).json()["events"]
    assert [event["event"] for event in events] == ["published", "settled", "released"]
    assert "curbstone_messages_undone_total 2.0" in (await gateway.http.get("/metrics")).text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"limit": 0}, 400), ({"limit": 10_001}, 400), ({"within": -1}, 400), ({"group": "a b"}, 400),
        ({"since": 1}, 400), ({"id": "none-1"}, 404), ({"group": "declared"}, 409),
    ],
)  # fmt: skip
async def test_impossible_undo_is_refused(gateway: Running, body: dict[str, object], status: int) -> None:
    await gateway.http.put(QUEUE, json={"groups": ["declared"]})
    refused = await gateway.http.post(QUEUE + "/undo", json=body)
    assert refused.status_code == status and refused.headers["content-type"] == "application/problem+json"


async def test_redrive_returns_dead_letters_to_their_queue(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/queues/dead")
    await gateway.http.put(QUEUE, json={"dead_letter": "dead"})
    await gateway.publish(b"body", **{"x-msg-x-a": "1"})
    [leased] = (await gateway.http.post(MESSAGES + "/lease")).json()["messages"]
    rejected = {"ackIds": [leased["ackId"]], "reject": True, "error": "bad"}
    assert (await gateway.http.post(MESSAGES + "/nack", json=rejected)).json()["settled"] == 1

    dead = await gateway.dead_letter()
    assert dead["dead"].items() >= {"queue": "p1/q", "reason": "rejected", "error": "bad", "id": leased["id"]}.items()
    assert (dead["message"], dead["x-msg-x-a"]) == ("body", "1")

    redriven = (await gateway.http.post("/v2/p1/queues/dead/redrive")).json()
    assert redriven == {"moved": 1, "stayed": {}, "more": False}
    reply = await gateway.http.delete(MESSAGES)
    assert (reply.content, reply.headers["x-msg-x-a"]) == (b"body", "1")
    assert not [name for name in reply.headers if name.startswith("x-msg-dead")]


async def test_redrive_creates_no_queue(gateway: Running) -> None:
    """It made the one that was asked for, and those that had been deleted."""
    await gateway.http.put("/v2/p1/queues/dead")
    await gateway.http.put("/v2/p1/queues/gone", json={"dead_letter": "dead", "max_tries": 1})
    await gateway.http.post("/v2/p1/queues/gone/messages", content=b"body")
    [leased] = (await gateway.http.post("/v2/p1/queues/gone/messages/lease")).json()["messages"]
    await gateway.http.post("/v2/p1/queues/gone/messages/nack", json={"ackIds": [leased["ackId"]]})
    while not (await gateway.http.get("/v2/p1/queues/dead")).json()["rdy"]:  # a nack does not wait for the dead letter
        pass
    await gateway.http.delete("/v2/p1/queues/gone")

    missing = await gateway.http.post("/v2/p1/queues/dead/redrive", json={"to": "nowhere"})
    assert (missing.status_code, missing.json()["detail"]) == (404, "no such queue: p1/nowhere")
    redriven = (await gateway.http.post("/v2/p1/queues/dead/redrive")).json()
    assert redriven == {"moved": 0, "stayed": {"no such queue: p1/gone": 1}, "more": False}
    for name in ("gone", "nowhere"):
        assert (await gateway.http.get(f"/v2/p1/queues/{name}")).status_code == 404
    assert (await gateway.http.post("/v2/p1/queues/dead/redrive", json={"to": "dead"})).status_code == 400


async def test_popped_dead_letter_has_its_origin(gateway: Running) -> None:
    await gateway.http.put("/v2/p1/queues/dead")
    await gateway.http.put(QUEUE, json={"dead_letter": "p1/dead", "max_tries": 1})
    await gateway.publish(b"body")
    [leased] = (await gateway.http.post(MESSAGES + "/lease")).json()["messages"]
    await gateway.http.post(MESSAGES + "/nack", json={"ackIds": [leased["ackId"]]})
    await gateway.dead_letter()
    headers = (await gateway.http.delete("/v2/p1/queues/dead/messages")).headers
    assert headers["x-msg-dead-queue"] == "p1/q"
    assert headers["x-msg-dead-reason"] == "max_tries"


@pytest.mark.parametrize("body", ['{"to":5}', '{"to":"a b"}', '{"limit":0}', '{"limit":"x"}', "[]"])
async def test_a_bad_redrive_is_400(gateway: Running, body: str) -> None:
    assert (await gateway.http.post(QUEUE + "/redrive", content=body)).status_code == 400


async def test_private_queue_is_unreachable_by_path(gateway: Running) -> None:
    """Anyone could list, pop and delete the queues of topics' subscribers and of replies."""
    stored = asyncio.Event()
    queue = gateway.broker.ensure(private_name("temp.c1.answers"))
    queue.publish([Message(b"secret", b"")], lambda *_answer: stored.set())
    await stored.wait()
    project, name = queue.name
    for spelled in (project, "%7Eprivate", "_temp", "default"):
        path = f"/v2/{spelled}/queues/{name}"
        for method, url in (
            ("GET", path), ("DELETE", path), ("DELETE", f"{path}/messages"), ("GET", f"{path}/messages"),
            ("POST", f"{path}/messages/lease"), ("POST", f"{path}/purge"), ("GET", f"{path}/browse"),
        ):  # fmt: skip
            reply = await gateway.http.request(method, url, content=b"{}")
            assert b"secret" not in reply.content
        listed = await gateway.http.get(f"/v2/{spelled}/queues")
        assert name not in listed.text
    assert gateway.broker.private_queues() == [queue] and queue.counts().rdy == 1


async def test_publish_paused_queue_is_507_and_delivers(gateway: Running) -> None:
    await gateway.publish(b"1")
    await gateway.http.put(QUEUE, json={"publish_paused": True})
    reply = await gateway.http.post(MESSAGES, content=b"2")
    assert (reply.status_code, reply.json()["type"]) == (507, "/docs/problems#publish-paused")
    assert reply.headers["retry-after"]
    async with gateway.socket("publish") as socket:
        await socket.send(b"2")
        assert (await json_from(socket))["code"] == 507
        await gateway.http.put(QUEUE, json={"publish_paused": False})
        await socket.send(b"3")
        assert await socket.recv() == ""
    assert await gateway.pop_all() == [b"1", b"3"]


async def test_pause_and_resume(gateway: Running) -> None:
    await gateway.publish(b"1")
    reply = await gateway.http.post(QUEUE + "/pause")
    assert (reply.status_code, reply.json()) == (200, {"paused": True, "publish_paused": False})
    assert await gateway.pop_all() == []
    reply = await gateway.http.post(QUEUE + "/pause", json={"deliver": False, "publish": True})
    assert reply.json() == {"paused": True, "publish_paused": True}
    assert (await gateway.http.post(MESSAGES, content=b"2")).status_code == 507
    assert (await gateway.http.get(QUEUE)).json()["options"]["publish_paused"]
    reply = await gateway.http.post(QUEUE + "/resume")
    assert (reply.status_code, reply.json()) == (200, {"paused": False, "publish_paused": False})
    await gateway.publish(b"3")
    assert await gateway.pop_all() == [b"1", b"3"]


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_pause_creates_no_queue(gateway: Running, verb: str) -> None:
    reply = await gateway.http.post(f"/v2/p1/queues/missing/{verb}")
    assert (reply.status_code, reply.json()["type"]) == (404, "/docs/problems#no-such-queue")
    assert (await gateway.http.get("/v2/p1/queues/missing")).status_code == 404
