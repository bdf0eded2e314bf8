"""stomp.py, with what users of other brokers bring along: topics that last, masks, arguments of queues, replies."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
import stomp

from tests.interop.test_stomp_py import Heard, connection
from tests.kit.server import ServerProcess

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def connected(server: ServerProcess) -> tuple[Any, Heard]:
    return connection(stomp.Connection12, server)


def send(made: Any, heard: Heard, destination: str, body: str, **headers: str) -> None:
    """Send, and wait until it is on disk."""
    receipt = f"r{len(heard.receipts)}"
    made.send(destination, body, headers={**headers, "receipt": receipt})
    heard.wait_until(lambda: receipt in heard.receipts or bool(heard.errors))
    assert not heard.errors, heard.errors[0].body


def subscribe(made: Any, heard: Heard, destination: str, **headers: str) -> None:
    """Subscribe, and wait until that is done."""
    receipt = f"r{len(heard.receipts)}"
    made.subscribe(destination, id="1", headers={**headers, "receipt": receipt})
    heard.wait_until(lambda: receipt in heard.receipts or bool(heard.errors))
    assert not heard.errors, heard.errors[0].body


def end(made: Any, heard: Heard) -> None:
    made.disconnect(receipt="bye")
    heard.wait_until(lambda: heard.lost == 1)


def options(server: ServerProcess, queue: str) -> dict[str, Any]:
    with httpx.Client(trust_env=False, timeout=60) as http:
        reported: dict[str, Any] = (
            http.get(f"{server.url}/v2/default/queues/{queue}").raise_for_status().json()["options"]
        )
    return reported


@pytest.mark.parametrize(
    "headers",
    [{"durable": "true"}, {"activemq.subscriptionName": "lasting"}, {"durable": "true", "x-queue-name": "own"}],
)
def test_durable_subscription_to_a_mask_keeps_messages_while_disconnected(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    mask, event = f"/topic/{len(headers)}.*.news", f"/topic/{len(headers)}.sport.news"
    made, heard = connected(server)
    subscribe(made, heard, mask, **headers)
    end(made, heard)
    publisher, published = connected(server)
    send(publisher, published, event, "while away")
    made, heard = connected(server)
    subscribe(made, heard, mask, **headers)
    assert heard.message(0).body == "while away"
    for each in ((made, heard), (publisher, published)):
        end(*each)


def test_transactional_topic_message_is_delivered_at_the_commit(server: ServerProcess) -> None:
    made, heard = connected(server)
    subscribe(made, heard, "/topic/tx.>")
    transaction = made.begin()
    made.send("/topic/tx.one", "in it", transaction=transaction)
    send(made, heard, "/topic/tx.two", "beside it")
    assert heard.message(0).body == "beside it"
    made.commit(transaction)
    assert heard.message(1).body == "in it"
    end(made, heard)


def test_queue_arguments_apply_and_the_queue_is_deleted_with_its_consumer(server: ServerProcess) -> None:
    made, heard = connected(server)
    arguments = {"x-message-ttl": "60000", "x-max-length-bytes": "100000", "x-overflow": "drop-head"}
    subscribe(
        made, heard, "/queue/arguments", **arguments, **{"x-dead-letter-routing-key": "dead", "x-expires": "90000"}
    )
    expected = {"ttl": 60, "cap": 100_000, "overflow": "drop-oldest", "dead_letter": "default/dead", "unused": 90}
    assert options(server, "arguments").items() >= expected.items()
    end(made, heard)
    made, heard = connected(server)
    subscribe(made, heard, "/queue/goes", **{"auto-delete": "true"})
    assert options(server, "goes")["unused"] == 0
    end(made, heard)
    with httpx.Client(trust_env=False, timeout=60) as http:
        end_s = time.monotonic() + 60
        while http.get(f"{server.url}/v2/default/queues/goes").status_code != 404:
            assert time.monotonic() < end_s, "the queue is still there"


def test_window_delay_ttl_and_metadata_headers_of_other_brokers_work(server: ServerProcess) -> None:
    made, heard = connected(server)
    far_ms = str(round(time.time() * 1000) + 3_600_000)
    send(made, heard, "/queue/means", "later", AMQ_SCHEDULED_DELAY="3600000")
    send(made, heard, "/queue/means", "gone", expires=str(round(time.time() * 1000) - 1000))
    send(
        made,
        heard,
        "/queue/means",
        "1",
        expires=far_ms,
        traceparent=TRACE,
        tracestate="a=b",
        **{"content-encoding": "br"},
    )
    send(made, heard, "/queue/means", "2")
    made.subscribe("/queue/means", id="1", ack="client-individual", headers={"activemq.prefetchSize": "1"})
    first = heard.message(0)
    assert first.body == "1", "neither what is delayed nor what is over its time"
    got = {name: first.headers[name] for name in ("traceparent", "tracestate", "content-encoding")}
    assert got == {"traceparent": TRACE, "tracestate": "a=b", "content-encoding": "br"}
    send(made, heard, "/queue/other", "whatever was to come for the window has come")
    assert len(heard.messages) == 1
    made.ack(first.headers["ack"])
    assert heard.message(1).body == "2"
    end(made, heard)


def test_deduplication_and_request_reply_without_a_subscription(server: ServerProcess) -> None:
    made, heard = connected(server)
    for _ in range(2):
        send(made, heard, "/queue/once", "order", **{"idempotency-key": "order-7"})
    send(made, heard, "/queue/once", "end")
    subscribe(made, heard, "/queue/once")
    assert [heard.message(index).body for index in range(2)] == ["order", "end"]
    worker, work = connected(server)
    subscribe(worker, work, "/queue/prices")
    made.send("/queue/prices", "how much?", headers={"reply-to": "/temp-queue/answers"})
    worker.send(work.message(0).headers["reply-to"], "42")
    reply = heard.message(2)
    assert (reply.body, reply.headers["subscription"]) == ("42", "/temp-queue/answers")
    for each in ((made, heard), (worker, work)):
        end(*each)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"selector": "a > 1"}, "curbstone bind EVENT QUEUE --filter"),
        ({"x-single-active-consumer": "true"}, "/temp-queue/{name}"),
        ({"x-max-length": "5"}, "x-max-length-bytes"),
    ],
)
def test_unsupported_header_error_names_the_nearest_supported_one(
    server: ServerProcess, headers: dict[str, str], says: str
) -> None:
    made, heard = connected(server)
    made.subscribe("/queue/refused", id="1", headers=headers)
    heard.wait_until(lambda: bool(heard.errors))
    assert says in heard.errors[0].headers["message"].replace("\\c", ":") + heard.errors[0].body
    heard.wait_until(lambda: heard.lost == 1)
