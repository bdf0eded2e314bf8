"""A message is the same on every protocol: what any producer sends, each consumer gets, with the same id."""

from __future__ import annotations

import asyncio

import pytest

from tests.cross_protocol.wire import CONSUMERS, MESSAGES, PRODUCERS, QUEUE, Received, Sent, http
from tests.kit.server import ServerProcess

pytestmark = pytest.mark.anyio

ALL_BYTES = bytes(range(256)) * 3
COMMON = [
    Sent(b"plain", "text/plain", {"x-msg-x-a": "1", "x-msg-x-b": "two words"}),
    Sent(ALL_BYTES, "application/octet-stream", {}),
    Sent(b"", "text/plain", {"x-msg-x-a": "1"}),
    Sent(b"\0", "a/b", {}),
    Sent(b"\r\n\r\n\0\n\nMESSAGE\n\n\0", "a/b", {}),
    Sent(b'{"message":"x"}', "application/json; charset=utf-8", {}),
    Sent("Grüße, 🎉\u2028\u0085".encode(), "text/plain; charset=utf-8", {"x-msg-x-text": "Grüße € 🎉"}),
    Sent(b"q", 'text/plain; note="a:b"', {"x-msg-x-quotes": "\"a\" 'b' `c`", "x-msg-x-colon": "a:b::c"}),
    Sent(b"s", "text/plain", {"x-msg-x-backslash": "\\n\\\\c\\", "x-msg-x-json": '{"a":[1,"\\u0041"]}'}),
    Sent(b"h", "text/html", {"x-msg-x-html": "<script>&amp;</script>", "x-msg-x-long": "v" * 4000}),
    Sent(b"e", "a/b", {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}),
]
# Only STOMP can say these.
LINES = [
    Sent(b"l", "text/plain", {"x-msg-x-lines": "a\r\nb\nc\rd\n\n", "x-msg-x-lf": "\n"}),
    Sent(
        b"i",
        "text/plain",
        {"x-msg-x-injected": "v\r\nx-msg-id: 7\r\n\r\nHTTP/1.1 200 OK", "x-msg-x-sse": "\n\ndata: x"},
    ),
    Sent(b"o", "text/plain", {"x-msg-x-spaces": " a ", "x-msg-x-tab": "a\tb", "x-msg-x-control": "\x01\x7f"}),
]


async def everywhere(server: ServerProcess, producer: str, messages: list[Sent]) -> dict[str, list[Received]]:
    """Publish all with one producer; return what each consumer gets."""
    async with http(server) as client:
        reply = await client.put(QUEUE, json={"groups": list(CONSUMERS), "cap": "10MiB"})
        assert reply.status_code == 201
    for sent in messages:
        await PRODUCERS[producer](server, sent)
    async with asyncio.timeout(60):
        received = [await consume(server, group, len(messages)) for group, consume in CONSUMERS.items()]
    return dict(zip(CONSUMERS, received, strict=True))


def judge(messages: list[Sent], found: dict[str, list[Received]]) -> None:
    for consumer, received in found.items():
        for sent, it in zip(messages, received, strict=True):
            assert (it.body, it.content_type) == (sent.body, sent.content_type), consumer
            assert it.metadata == sent.metadata, consumer
            assert (it.tries, it.redelivered) == (0, False), consumer
    first = next(iter(found.values()))
    assert len({it.id for it in first}) == len(messages)
    for consumer, received in found.items():
        assert [(it.id, it.timestamp) for it in received] == [(it.id, it.timestamp) for it in first], consumer


@pytest.mark.parametrize("producer", PRODUCERS)
async def test_message_of_one_protocol_is_received_by_all(server: ServerProcess, producer: str) -> None:
    judge(COMMON, await everywhere(server, producer, COMMON))


async def test_metadata_invalid_in_other_protocols_is_delivered(server: ServerProcess) -> None:
    judge(LINES, await everywhere(server, "stomp", LINES))


async def test_a_stomp_header_of_a_plain_name_is_metadata_everywhere(server: ServerProcess) -> None:
    found = await everywhere(server, "stomp", [Sent(b"x", "a/b", {"priority-note": "high", "correlation-id": "c-1"})])
    for consumer, (received,) in found.items():
        assert received.metadata == {"x-msg-x-priority-note": "high", "x-msg-x-correlation-id": "c-1"}, consumer


async def test_producer_headers_do_not_override_server_headers(server: ServerProcess) -> None:
    forged = {
        "message-id": "7",
        "subscription": "9",
        "redelivered": "true",
        "x-tries": "5",
        "timestamp": "1",
        "ack": "z",
    }
    found = await everywhere(server, "stomp", [Sent(b"x", "a/b", forged)])
    for consumer, (received,) in found.items():
        assert received.id != "7" and received.timestamp > 1 and (received.tries, received.redelivered) == (0, False), (
            consumer
        )


@pytest.mark.parametrize("consumer", CONSUMERS)
async def test_a_redelivery_has_the_same_id_on_every_protocol(server: ServerProcess, consumer: str) -> None:
    async with http(server) as client:
        await client.put(QUEUE, json={"groups": [consumer]})
        sent = await client.post(MESSAGES, content="x")
        for tries in range(3):
            (lease,) = (await client.post(f"{MESSAGES}/lease", json={"group": consumer})).json()["messages"]
            assert (lease["id"], lease["tries"]) == (sent.headers["x-msg-id"], tries)
            await client.post(f"{MESSAGES}/nack", json={"ackIds": [lease["ackId"]]})
    (received,) = await CONSUMERS[consumer](server, consumer, 1)
    assert (received.id, received.tries, received.redelivered) == (sent.headers["x-msg-id"], 3, True)


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\0b"])
async def test_json_with_reserved_metadata_is_400(server: ServerProcess, value: str) -> None:
    async with http(server) as client:
        await client.put(QUEUE)
        for name in ("x-msg-x-a", "x-a", "ce-a", "Content-Type"):
            reply = await client.post(f"{MESSAGES}/batch", json=[{"message": "ok"}, {"message": "x", name: value}])
            assert reply.status_code == 400
        assert (await client.get(QUEUE)).json()["rdy"] == 0
