"""curl, with what users of such servers look for: events, options, keys, one message by its id, leases, requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.interop_http.test_curl import Reply, curl
from tests.kit.server import ServerProcess

URL = "http://localhost:8080/v2/shop"


def call(server: ServerProcess, verb: str, path: str, body: object = None, more: str = "") -> Reply:
    data = "" if body is None else f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    return curl(server, f"curl -i -X {verb} {data} {more} '{URL}{path}'")


def reported(server: ServerProcess, verb: str, path: str, body: object = None, more: str = "") -> Any:
    reply = call(server, verb, path, body, more)
    assert 200 <= reply.status < 300, reply.body
    return json.loads(reply.body)


def publish(server: ServerProcess, queue: str, body: str, more: str = "") -> str:
    reply = curl(server, f"curl -i --data-binary '{body}' {more} '{URL}/queues/{queue}/messages'")
    assert reply.status == 201, reply.body
    return reply.headers["x-msg-id"]


def pop(server: ServerProcess, queue: str) -> Reply:
    return call(server, "DELETE", f"/queues/{queue}/messages")


def test_queues_are_bound_to_events_and_masks(server: ServerProcess) -> None:
    for queue, mask in (("one-word", "order.*"), ("any-words", "order.%23"), ("as-nats", "order.%3E")):
        call(server, "PUT", f"/queues/{queue}")
        assert call(server, "PUT", f"/events/{mask}/queues/{queue}").status == 201
    events = "curl -i --data-binary x"
    assert json.loads(curl(server, f"{events} {URL}/events/order.new/messages").body) == {"queues": 3}
    assert json.loads(curl(server, f"{events} {URL}/events/order.new.big/messages").body) == {"queues": 2}
    assert [pop(server, "one-word").status for _ in range(2)] == [200, 204]
    assert [pop(server, "any-words").status for _ in range(3)] == [200, 200, 204]
    assert call(server, "DELETE", "/events/order.*/queues/one-word").status == 204
    listed = reported(server, "GET", "/events")["events"]
    assert [(each["event"], each["queues"]) for each in listed] == [
        ("order.#", ["any-words"]),
        ("order.>", ["as-nats"]),
    ]


def test_options_for_pause_overflow_and_schema_work(server: ServerProcess) -> None:
    options = {"cap": 65536, "overflow": "drop-oldest", "unused": 3600, "nack_delay": 1, "nack_delay_max": 300}
    assert call(server, "PUT", "/queues/opt", options).status == 201
    for number in range(10):
        publish(server, "opt", f"{number}{'x' * 10_000}")
    assert "to make room for newer ones" in " ".join(reported(server, "GET", "/queues/opt/explain")["sentences"])
    assert reported(server, "GET", "/queues/opt")["options"].items() >= options.items()
    assert reported(server, "POST", "/queues/opt/pause") == {"paused": True, "publish_paused": False}
    assert pop(server, "opt").status == 204
    assert reported(server, "POST", "/queues/opt/resume") == {"paused": False, "publish_paused": False}
    assert pop(server, "opt").body[:1] != b"0"
    schema = {"type": "object", "properties": {"total": {"type": "number"}}}
    assert call(server, "PUT", "/queues/typed", {"schema": schema}).status == 201
    refused = call(server, "POST", "/queues/typed/messages", {"total": "much"})
    assert (refused.status, json.loads(refused.body)["pointer"]) == (422, "/total")
    assert call(server, "POST", "/queues/typed/messages", {"total": 5}).status == 201


def test_ordering_key_and_idempotency_key_work(server: ServerProcess) -> None:
    call(server, "PUT", "/queues/keys")
    for body in ("first", "second"):
        publish(server, "keys", body, "-H 'x-key: customer-7'")
    (first,) = reported(server, "POST", "/queues/keys/messages/lease", {"count": 5})["messages"]
    assert (first["message"], first["key"]) == ("first", "customer-7")
    assert f"It waits behind message {first['id']} of the same key" in " ".join(
        reported(server, "GET", "/queues/keys/explain")["sentences"]
    )
    assert reported(server, "POST", "/queues/keys/messages/ack", {"ackIds": [first["ackId"]]})["settled"] == 1
    assert pop(server, "keys").body == b"second"
    ids = {publish(server, "keys", "once", "-H 'Idempotency-Key: order-7'") for _ in range(2)}
    assert len(ids) == 1
    assert [pop(server, "keys").status for _ in range(2)] == [200, 204]


def test_single_message_calls_work(server: ServerProcess) -> None:
    call(server, "PUT", "/queues/dead")
    call(server, "PUT", "/queues/one", {"dead_letter": "shop/dead"})
    message = publish(server, "one", "body")
    assert reported(server, "GET", f"/queues/one/messages/{message}")["state"] == "rdy"
    (leased,) = reported(server, "POST", "/queues/one/messages/lease")["messages"]
    ends = {"reject": [{"ackId": leased["ackId"], "error": "no such customer"}]}
    assert reported(server, "POST", "/queues/one/messages/settle", ends) == {"settled": 1, "stale": []}
    history = reported(server, "GET", f"/queues/one/messages/{message}/history")
    assert (history["state"], history["events"][0]["event"]) == ("gone", "published")
    (letter,) = reported(server, "GET", "/queues/dead/messages")["messages"]
    assert letter["dead"]["error"] == "no such customer"
    assert reported(server, "POST", "/queues/dead/redrive", {"id": letter["id"]})["moved"] == 1
    (back,) = reported(server, "GET", "/queues/one/messages")["messages"]
    assert call(server, "DELETE", f"/queues/one/messages/{back['id']}").status == 204
    assert call(server, "GET", f"/queues/one/messages/{back['id']}").status == 404


def test_unconfirmed_pop_is_requeued(server: ServerProcess) -> None:
    call(server, "PUT", "/queues/safe")
    publish(server, "safe", "body")
    popped = call(server, "DELETE", "/queues/safe/messages?confirm=30")
    assert (popped.status, popped.body) == (200, b"body")
    (holder,) = reported(server, "GET", "/queues/safe/explain")["holders"]
    assert (holder["kind"], holder["unsettled"]) == ("leases", 1)
    confirm = f"/queues/safe/leases/{popped.headers['x-msg-lease']}"
    assert [call(server, "DELETE", confirm).status for _ in range(2)] == [204, 404]


def test_lists_are_paged_and_the_root_redirects_to_the_console(server: ServerProcess) -> None:
    for queue in ("a1", "a2", "b1"):
        call(server, "PUT", f"/queues/{queue}")
    page = reported(server, "GET", "/queues?prefix=a&limit=1")
    assert ([queue["name"] for queue in page["queues"]], page["next"]) == (["a1"], "a1")
    page = reported(server, "GET", "/queues?prefix=a&limit=1&after=a1")
    assert ([queue["name"] for queue in page["queues"]], "next" in page) == (["a2"], False)
    root = curl(server, "curl -i -H 'Accept: text/html' http://localhost:8080/")
    assert (root.status, root.headers["location"]) == (303, "/console")


def test_request_reply_works_and_keeps_its_trace(server: ServerProcess) -> None:
    call(server, "PUT", "/queues/prices")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = f"-H 'traceparent: {trace}' -H 'tracestate: a=b' -H 'Content-Encoding: gzip'"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(curl, server, f"curl -i --data-binary q {headers} '{URL}/queues/prices/request?wait=30'")
        question = call(server, "DELETE", "/queues/prices/messages?wait=30")
        got = {name: question.headers[name] for name in ("traceparent", "tracestate", "content-encoding")}
        assert got == {"traceparent": trace, "tracestate": "a=b", "content-encoding": "gzip"}
        address = question.headers["x-msg-x-reply-to"].rpartition("/")[2]
        assert curl(server, f"curl -i --data-binary 42 'http://localhost:8080/v2/replies/{address}'").status == 204
        assert asked.result().body == b"42"
