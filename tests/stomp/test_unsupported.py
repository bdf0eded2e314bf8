"""What has a meaning to other brokers and none here: an ERROR that names the nearest thing, row by row."""

from __future__ import annotations

import pytest

from curbstone.stomp.unsupported import ANY, NO_TOPIC, QUEUE, SHAPES, TOPIC, UNSUPPORTED, Header
from tests.stomp.harness import Client, send

PLACES = {QUEUE: "/queue/a", TOPIC: "/topic/news", "a temporary queue": "/temp-queue/t"}
NAMES = {
    "/queue/a,/queue/b": "a frame has one destination",
    "/topic/a,/topic/b": "a frame has one destination",
    "/topic/a,queue://b": "a frame has one destination",
    "/queue/a?consumer.prefetchSize=5": "use headers",
    "/topic/a?consumer.prefetchSize=5": "use headers",
    "/exchange/amq.topic/a.*": "/topic/{event}",
    "/exchange/x": "/topic/{event}",
    "/amq/queue/a": "/queue/{queue}",
    "/temp-topic/a": "/temp-queue/{name}",
    "/user/queue/a": "framework",
    "queue://a": "/queue/{queue}",
    "topic://a": "/topic/{event}",
    "/queue/a%2Fb": "percent-decoded",
    "/temp-queue/a%2fb": "percent-decoded",
    "/queue/a/b/c": "/queue/{project}/{queue}",
    "/queue/a/b/c/count": "/queue/{project}/{queue}",
    "orders::q1": "/queue/{queue}",
    "/queue/orders::q1": "/queue/{queue}",
}
GOOD_NAMES = [
    "/topic/C#",
    "/topic/a,b",
    "/topic/a*",
    "/topic/a?b",
    "/topic/50%25",
    "/queue/a/b",
    "/topic/a/b/c",
    "/topic/a::b",
    "/queue/a:b",
    "/queue/a.b.c",
]


def frame(command: str, destination: str, header: str = "receipt:r") -> str:
    if command == "SEND":
        return send("x", header, queue=destination)
    return f"SUBSCRIBE|id:0|destination:{destination}|{header}"


def cases() -> list[tuple[Header, str, str]]:
    found = []
    for header in UNSUPPORTED:
        places = [place for kind, place in PLACES.items() if header.concerns(kind if kind in (QUEUE, TOPIC) else ANY)]
        found += [(header, command, place) for command in header.commands for place in places]
    return found


@pytest.mark.parametrize(("header", "command", "place"), cases())
def test_unsupported_header_is_an_error(client: Client, header: Header, command: str, place: str) -> None:
    value = "42" if header.value == "…" else header.value.capitalize()
    error = client.error(frame(command, place, f"{header.name}:{value}|receipt:r"))
    assert error.headers["message"] == f"{header.name} is not supported: {header.rule}"
    assert error.headers["receipt-id"] == "r"
    assert f"{header.name}:{value}" in error.body.decode()
    assert not client.lab.names(), "nothing is made or stored"


@pytest.mark.parametrize(("header", "command", "place"), [case for case in cases() if case[0].value == "true"])
def test_unsupported_header_with_the_opposite_value_is_accepted(header: Header, command: str, place: str) -> None:
    assert not Client().send(frame(command, place, f"{header.name}:false"))


@pytest.mark.parametrize("header", [header for header in UNSUPPORTED if header.where not in (ANY, NO_TOPIC)])
def test_header_stating_the_default_is_accepted(header: Header) -> None:
    for where, place in PLACES.items():
        if where != header.where:
            for command in header.commands:
                assert not Client().send(frame(command, place, f"{header.name}:true"))


@pytest.mark.parametrize(
    "header", ["persistent:true", "priority:4", "durable:true", "selector:x", "x-queue-type:quorum"]
)
def test_harmless_send_headers_are_accepted(header: str) -> None:
    assert Client().receipts(send("x", header, "receipt:r")) == ["r"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
def test_foreign_destination_error_names_the_nearest_one(client: Client, name: str, command: str) -> None:
    error = client.error(frame(command, name))
    assert NAMES[name] in error.headers["message"]
    assert name in error.body.decode() and not client.lab.names()


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_lookalike_destinations_are_accepted(name: str) -> None:
    assert Client().receipts(frame("SUBSCRIBE", name), send("x", "receipt:r", queue=name)) == ["r", "r"]


def test_single_queue_mode_maps_every_name() -> None:
    client = Client(single_queue="a")
    for name in [name for name in NAMES if not name.endswith("/count")]:
        assert client.receipts(send("x", "receipt:r", queue=name)) == ["r"]


def test_every_destination_form_is_tested() -> None:
    assert all(any(shape.pattern.match(name) for name in NAMES) for shape in SHAPES)


def test_a_delay_and_a_time_to_live_by_the_names_of_other_brokers(client: Client) -> None:
    client.send(send("late", "AMQ_SCHEDULED_DELAY:500"), send("soon", "x-delta-t:100", "AMQ_SCHEDULED_DELAY:500"))
    found = client.lab.peek(client.lab.named("a"))
    assert [each.message.delay_ms for each in found] == [500, 100]
    assert not any(b"AMQ" in each.message.headers for each in found), "it is done"


@pytest.mark.parametrize(
    ("headers", "ttl_ms"),
    [(["expiration:70"], 70), (["x-message-ttl:80"], 80), (["expiration:70", "x-message-ttl:80"], 70),
     (["expires:{now+90}"], 90), (["expires:0"], 0), (["expires:1000"], 1), (["expiration:0", "expires:1000"], 0)],
)  # fmt: skip
def test_how_long_a_message_lives(client: Client, headers: list[str], ttl_ms: int) -> None:
    client.send(send("x", *[header.replace("{now+90}", str(client.lab.host.now_ms() + 90)) for header in headers]))
    assert [found.message.ttl_ms for found in client.lab.peek(client.lab.named("a"))] == [ttl_ms]


def test_absolute_time_is_converted_per_frame(client: Client) -> None:
    text = send("x", f"expires:{client.lab.host.now_ms() + 1000}")
    client.send(text)
    client.lab.pass_time(400)
    client.send(text)
    assert [found.message.ttl_ms for found in client.lab.peek(client.lab.named("a"))] == [1000, 600]


@pytest.mark.parametrize("header", ["AMQ_SCHEDULED_DELAY", "x-message-ttl", "expires", "expiration"])
@pytest.mark.parametrize("value", ["-1", "soon", "1e3", "9" * 14, ""])
def test_invalid_delay_or_ttl_is_an_error(header: str, value: str) -> None:
    assert header in Client().error(send("x", f"{header}:{value}")).headers["message"]
