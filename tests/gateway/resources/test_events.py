"""Events over HTTP and WebSocket: bound, published to, refused, and still there after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from curbstone.core.options import QueueOptions
from curbstone.gateway.settings import GatewaySettings
from tests.kit.gateway import Running, json_from, running

EVENTS = "/v2/p1/events"
pytestmark = pytest.mark.anyio


async def bind(gateway: Running, event: str, *queues: str, **options: Any) -> None:
    for queue in queues:
        assert (await gateway.http.put(f"/v2/p1/queues/{queue}", json=options)).status_code == 201
        reply = await gateway.http.put(f"{EVENTS}/{event}/queues/{queue}")
        assert reply.status_code == 201, reply.text


async def bodies(gateway: Running, queue: str) -> list[str]:
    found = (await gateway.http.get(f"/v2/p1/queues/{queue}/messages?limit=100")).json()["messages"]
    return [message["message"] for message in found]


async def test_event_reaches_every_bound_queue(gateway: Running) -> None:
    await bind(gateway, "order", "a", "b")
    await bind(gateway, "order.*", "c")
    reply = await gateway.http.post(f"{EVENTS}/order/messages?delay=0", content="1", headers={"x-msg-x-a": "7"})
    assert (reply.status_code, reply.json()) == (201, {"queues": 2})
    (message,) = (await gateway.http.get("/v2/p1/queues/a/messages")).json()["messages"]
    assert (message["message"], message["x-msg-x-a"]) == ("1", "7")
    assert [await bodies(gateway, name) for name in "abc"] == [["1"], ["1"], []]


async def test_event_name_can_have_a_slash(gateway: Running) -> None:
    """A durable subscriber to `/topic/a/b` bound its queue to such an event, and HTTP could not undo it."""
    await bind(gateway, "a%2Fb", "q")
    await bind(gateway, "a%252Fb", "p")
    events = (await gateway.http.get(EVENTS)).json()["events"]
    assert events == [{"event": "a%2Fb", "queues": ["p"]}, {"event": "a/b", "queues": ["q"]}]
    assert (await gateway.http.post(f"{EVENTS}/a%2fb/messages", content="1")).json() == {"queues": 1}
    async with gateway.socket("publish", path=f"{EVENTS}/a%2Fb/messages") as socket:
        await socket.send(b"2")
        assert await socket.recv() == ""
    assert await bodies(gateway, "q") == ["1", "2"]
    assert (await gateway.http.delete(f"{EVENTS}/a%2Fb/queues/q")).status_code == 204
    assert [each["event"] for each in (await gateway.http.get(EVENTS)).json()["events"]] == ["a%2Fb"]


@pytest.mark.parametrize("path", ["/v2/p%2F1/events/a/queues/q", f"{EVENTS}/a/queues/b%2Fq", f"{EVENTS}%2Fa/queues/q"])
async def test_other_names_cannot_have_a_slash(gateway: Running, path: str) -> None:
    reply = await gateway.http.put(path)
    assert (reply.status_code, reply.json()["detail"]) == (
        400,
        "only the name of an event or the id of a batch can contain a slash, as %2F",
    )


async def test_a_queue_bound_twice_over_gets_one_copy(gateway: Running) -> None:
    for event in ("order.paid", "order.*", "%23", "order.%3E"):
        await bind(gateway, event, "a")
    reply = await gateway.http.post(f"{EVENTS}/order.paid/messages", content="1")
    assert (reply.json(), await bodies(gateway, "a")) == ({"queues": 1}, ["1"])


async def test_event_without_bindings_is_reported_without_error(gateway: Running) -> None:
    reply = await gateway.http.post(f"{EVENTS}/order/messages", content="1")
    assert (reply.status_code, reply.json()) == (201, {"queues": 0})


async def test_list_has_only_bound_events(gateway: Running) -> None:
    await bind(gateway, "order", "b", "a")
    await bind(gateway, "%23", "a")
    await gateway.http.put("/v2/other/queues/a")
    await gateway.http.put("/v2/other/events/order/queues/a")
    events = (await gateway.http.get(EVENTS)).json()
    assert events == {"events": [{"event": "#", "queues": ["a"]}, {"event": "order", "queues": ["a", "b"]}]}
    assert (await gateway.http.delete(f"{EVENTS}/order/queues/a")).status_code == 204
    assert (await gateway.http.delete(f"{EVENTS}/order/queues/a")).status_code == 204, "again"
    await gateway.http.delete("/v2/p1/queues/b")
    assert (await gateway.http.get(EVENTS)).json() == {"events": [{"event": "#", "queues": ["a"]}]}


async def test_events_are_per_project(gateway: Running) -> None:
    await bind(gateway, "order", "a")
    reply = await gateway.http.post("/v2/p2/events/order/messages", content="1")
    assert (reply.json(), await bodies(gateway, "a")) == ({"queues": 0}, [])


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("PUT", "/order/queues/missing", 404),
        ("DELETE", "/order/queues/missing", 404),
        ("PUT", "/a%20b/queues/q", 400),
        ("POST", "/order.*/messages", 400),
        ("POST", "/%23/messages/batch", 400),
        ("GET", "/order/messages", 405),
    ],
)
async def test_invalid_requests_are_refused(gateway: Running, verb: str, path: str, status: int) -> None:
    reply = await gateway.http.request(verb, EVENTS + path)
    assert reply.status_code == status, reply.text


async def test_full_queue_is_named_and_others_get_the_event(gateway: Running) -> None:
    await bind(gateway, "order", "small", max_message_size=10)
    await bind(gateway, "order", "large")
    reply = await gateway.http.post(f"{EVENTS}/order/messages", content="x" * 11)
    assert reply.status_code == 413
    assert (reply.json()["stored"], list(reply.json()["refused"])) == (1, ["p1/small"])
    assert [await bodies(gateway, "small"), await bodies(gateway, "large")] == [[], ["x" * 11]]


async def test_event_batch_is_stored_in_all_queues_or_none(gateway: Running) -> None:
    await bind(gateway, "order", "small", max_message_size=10)
    await bind(gateway, "order", "large")
    reply = await gateway.http.post(f"{EVENTS}/order/messages/batch", json=[{"message": "1"}, {"message": "2"}])
    assert (reply.status_code, reply.json()) == (201, {"queues": 2, "messages": 2})
    reply = await gateway.http.post(f"{EVENTS}/order/messages/batch", json=[{"message": "3"}, {"message": "x" * 11}])
    assert reply.status_code == 413
    assert [await bodies(gateway, "small"), await bodies(gateway, "large")] == [["1", "2"], ["1", "2"]]


async def test_idempotency_key_is_refused_for_events(gateway: Running) -> None:
    reply = await gateway.http.post(f"{EVENTS}/order/messages", content="1", headers={"idempotency-key": "k"})
    assert reply.status_code == 400


async def test_bindings_survive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
            if not (await gateway.http.get(EVENTS)).json()["events"]:
                await bind(gateway, "order.*", "a")
                continue
            assert (await gateway.http.post(f"{EVENTS}/order.1/messages", content="1")).json() == {"queues": 1}
            return
    raise AssertionError("it is not there")


async def test_a_websocket_publishes_to_an_event_and_each_message_is_confirmed(gateway: Running) -> None:
    await bind(gateway, "order.%23", "a", "b")
    async with gateway.socket("publish", path=f"{EVENTS}/order.paid/messages") as socket:
        await socket.send(b"1")
        await socket.send('{"message":"2","x-a":"7"}')
        assert [await socket.recv(), await socket.recv()] == ["", ""]
    assert [await bodies(gateway, name) for name in "ab"] == [["1", "2"], ["1", "2"]]


async def test_a_websocket_continues_when_a_queue_is_full(gateway: Running) -> None:
    await bind(gateway, "order", "a", cap="64KiB", max_message_size="64KiB")
    async with gateway.socket("publish", path=f"{EVENTS}/order") as socket, asyncio.timeout(60):
        error = ""
        while not error:
            await socket.send(b"x" * 8000)
            if reply := await socket.recv(decode=False):
                error = reply.decode()
        assert '"code":507' in error and "p1/a" in error
        await gateway.http.post("/v2/p1/queues/a/purge")
        await socket.send(b"x")
        assert await socket.recv() == ""


async def test_a_websocket_continues_behind_a_message_that_is_too_large(gateway: Running) -> None:
    await bind(gateway, "order", "a", max_message_size=10)
    async with gateway.socket("publish", path=f"{EVENTS}/order") as socket:
        await socket.send(b"x" * 11)
        await socket.send(b"1")
        assert (await json_from(socket))["code"] == 413
        assert await socket.recv() == ""
    assert await bodies(gateway, "a") == ["1"]


@pytest.mark.parametrize(
    ("protocol", "event", "query"),
    [("consume", "order", ""), ("publish", "order.*", ""), ("publish", "o", "?confirm=json")],
)
async def test_unsupported_event_websocket_options_are_refused(
    gateway: Running, protocol: str, event: str, query: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with gateway.socket(protocol, query, path=f"{EVENTS}/{event}/messages"):
            pass
    assert refused.value.response.status_code == 400


# --- filters


async def test_binding_filter_can_be_shown_replaced_and_removed(gateway: Running) -> None:
    await bind(gateway, "order", "all", "eu")
    path = f"{EVENTS}/order/queues/eu"
    assert (await gateway.http.put(path, json={"filter": "region = 'eu'"})).status_code == 201
    (event,) = (await gateway.http.get(EVENTS)).json()["events"]
    assert event == {"event": "order", "queues": ["all", "eu"], "filters": {"eu": "region = 'eu'"}}
    info = (await gateway.http.get("/v2/p1/queues/eu")).json()
    assert (info["bindings"], info["filters"]) == (["order"], {"order": "region = 'eu'"})
    reached = []
    for region in ("eu", "us"):
        reply = await gateway.http.post(f"{EVENTS}/order/messages", content=region, headers={"x-msg-x-region": region})
        reached.append(reply.json()["queues"])
    assert reached == [2, 1] and [await bodies(gateway, name) for name in ("all", "eu")] == [["eu", "us"], ["eu"]]
    sentences = (await gateway.http.get("/v2/p1/queues/eu/explain")).json()["sentences"]
    assert "Since the start the filters of its bindings have excluded 1 message." in sentences
    assert "curbstone_messages_filtered_total 1.0" in (await gateway.http.get("/metrics")).text
    assert (await gateway.http.put(path, json={"filter": None})).status_code == 201
    assert "filters" not in (await gateway.http.get("/v2/p1/queues/eu")).json()


async def test_event_batch_reaches_queues_with_a_matching_filter(gateway: Running) -> None:
    await bind(gateway, "order", "eu", "us", "asia")
    for name in ("eu", "us", "asia"):
        await gateway.http.put(f"{EVENTS}/order/queues/{name}", json={"filter": f"region = '{name}'"})
    batch = [{"message": str(number), "x-msg-x-region": ("eu", "us")[number % 2]} for number in range(4)]
    reply = await gateway.http.post(f"{EVENTS}/order/messages/batch", json=batch)
    assert reply.json() == {"queues": 2, "messages": 4}
    assert [await bodies(gateway, name) for name in ("eu", "us", "asia")] == [["0", "2"], ["1", "3"], []]


async def test_websocket_confirms_messages_that_match_no_filter(gateway: Running) -> None:
    await bind(gateway, "order", "eu")
    await gateway.http.put(f"{EVENTS}/order/queues/eu", json={"filter": "content-type = 'text/x'"})
    async with gateway.socket("publish", path=f"{EVENTS}/order/messages") as socket:
        await socket.send('{"message": "1"}')
        await socket.send('{"message": "2", "Content-Type": "text/x"}')
        assert [await socket.recv() for _ in range(2)] == ["", ""]
    assert await bodies(gateway, "eu") == ["2"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"filter": "a !"}, "bad filter at character 3: unexpected '!'"),
        ({"filter": 5}, "bad filter"),
        ({"selector": "a = 1"}, "unknown member 'selector'; a binding may have filter"),
    ],
)
async def test_a_bad_binding_is_refused(gateway: Running, body: object, error: str) -> None:
    await bind(gateway, "order", "a")
    reply = await gateway.http.put(f"{EVENTS}/other/queues/a", json=body)
    assert reply.status_code == 400 and error in reply.json()["detail"]
    assert [each["event"] for each in (await gateway.http.get(EVENTS)).json()["events"]] == ["order"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_consuming_with_a_filter_is_refused(gateway: Running, method: str) -> None:
    """It was ignored: a pop with a filter took any message."""
    await bind(gateway, "order", "a")
    await gateway.http.post("/v2/p1/queues/a/messages", content="1")
    reply = await gateway.http.request(
        method, "/v2/p1/queues/a/messages?filter=a=1", headers={"accept": "text/event-stream"}
    )
    assert reply.status_code == 400 and "curbstone bind EVENT QUEUE --filter" in reply.json()["detail"]
    with pytest.raises(InvalidStatus) as refused:
        async with gateway.socket("consume", path="/v2/p1/queues/a/messages?filter=a=1"):
            pass
    assert refused.value.response.status_code == 400
    assert await bodies(gateway, "a") == ["1"]
