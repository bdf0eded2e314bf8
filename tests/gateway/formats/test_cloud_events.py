"""CloudEvents: binary mode both ways, structured mode and batches on publish."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.cloud_events import header_of_value, message_fields, mode_of, parse, value_of_header
from tests.kit.gateway import MESSAGES, Running, json_from

EVENT: dict[str, Any] = {"specversion": "1.0", "id": "a-1", "source": "/shop", "type": "shop.order"}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"plain", "plain"),
        (b"a%20b", "a b"),
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("Euro €".encode(), "Euro €"),
        (b"\xe9", "é"),
        (b'"quoted \\"text\\""', 'quoted "text"'),
        (b"100%", "100%"),
        (b"%FF", "%FF"),
        (b"a%0Ab", "a%0Ab"),
        (b"a%00b", "a%00b"),
        (b'"', '"'),
        (b"%22", '"'),
    ],
)
def test_cloud_event_attribute_is_read_from_its_header(header: bytes, value: str) -> None:
    assert value_of_header(header) == value


@pytest.mark.parametrize("value", ["plain", "a b", "Euro € 😀", 'q"q', "100%", "%41", "\\", "a:b", "\t", "'"])
def test_cloud_event_attribute_round_trips(value: str) -> None:
    header = header_of_value(value)
    assert header.isascii() and b" " not in header
    assert value_of_header(header) == value


@pytest.mark.parametrize(
    ("more", "content_type", "body"),
    [
        ({}, None, b""),
        ({"data": None}, None, b""),
        ({"data": {"b": [1, 2.5, "é"], "a": None}}, "application/json", '{"b":[1,2.5,"é"],"a":null}'.encode()),
        ({"data": "text"}, "application/json", b'"text"'),
        ({"data": "text", "datacontenttype": "text/plain"}, "text/plain", b"text"),
        ({"data": "text", "datacontenttype": "application/x+json"}, "application/x+json", b'"text"'),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, "text/plain", b'{"a":1}'),
        ({"data": 0, "datacontenttype": "Application/JSON; x=y"}, "Application/JSON; x=y", b"0"),
        ({"data": 123456789012345678901234567890}, "application/json", b"123456789012345678901234567890"),
        ({"data_base64": "AAH/", "datacontenttype": "image/png"}, "image/png", b"\0\1\xff"),
        ({"data_base64": "AAH/"}, None, b"\0\1\xff"),
    ],
)
def test_cloud_event_data_becomes_the_body(more: dict[str, Any], content_type: str | None, body: bytes) -> None:
    fields, got = message_fields(parse(orjson.dumps(EVENT)) | more)
    assert got == body
    assert fields.get("Content-Type") == content_type
    assert {name: value for name, value in fields.items() if name != "Content-Type"} == {
        "ce-specversion": "1.0", "ce-id": "a-1", "ce-source": "/shop", "ce-type": "shop.order"
    }  # fmt: skip


def test_cloud_event_attributes_are_strings() -> None:
    fields, _ = message_fields(EVENT | {"flag": True, "number": -5, "time": "2026-01-01T00:00:00Z", "nothing": None})
    assert (fields["ce-flag"], fields["ce-number"], fields["ce-time"]) == ("true", "-5", "2026-01-01T00:00:00Z")
    assert "ce-nothing" not in fields


@pytest.mark.parametrize(
    "event",
    [
        *([], "x", None, 5, {}, {**EVENT, "specversion": "0.3"}, {**EVENT, "id": ""}, {**EVENT, "source": 5}),
        *({**EVENT, "Bad": "x"}, {**EVENT, "b_d": "x"}, {**EVENT, "": "x"}, {**EVENT, "x": {}}, {**EVENT, "x": 1.5}),
        *({**EVENT, "data": 1, "data_base64": ""}, {**EVENT, "data_base64": "?"}, {**EVENT, "data_base64": 5}),
        {**EVENT, "datacontenttype": 5},
    ],
)
def test_invalid_cloud_event_is_refused(event: Any) -> None:
    with pytest.raises(BadRequest, match="bad CloudEvent"):
        message_fields(event)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'"\xff"', b'"\\ud800"', b"[NaN]", b"[" * 5000, b"1" * 5000, b"\xef\xbb\xbf{}"]
)
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest, match="bad JSON"):
        parse(text)


def test_the_mode_is_in_the_content_type() -> None:
    assert mode_of(((b"content-type", b"Application/CloudEvents+JSON;charset=x"),)) == b"application/cloudevents+json"
    assert mode_of(((b"content-type", b"application/cloudevents-batch+json"),)) == b"application/cloudevents-batch+json"
    assert mode_of(((b"content-type", b"application/json"),)) == b""
    assert mode_of(()) == b""


@pytest.mark.anyio
async def test_binary_mode_event_round_trips(gateway: Running) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-subject": "a%20%C3%A9%25"}
    await gateway.publish(b"\0data", **headers, **{"Content-Type": "x/y", "x-msg-x-a": "1"})
    async with gateway.socket("consume", "?ack") as socket:
        metadata = await json_from(socket)
        assert metadata["ce-subject"] == "a é%"
        assert metadata["x-msg-x-a"] == "1"
    got = await gateway.http.delete(MESSAGES)
    assert {name: got.headers[name] for name in headers} == headers
    assert (got.content, got.headers["content-type"]) == (b"\0data", "x/y")


@pytest.mark.anyio
async def test_structured_mode_event_is_delivered_in_binary_mode(gateway: Running) -> None:
    event = EVENT | {"datacontenttype": "text/plain", "data": "hi", "subject": "naïve idea"}
    sent = await gateway.http.post(MESSAGES, content=orjson.dumps(event), headers=STRUCTURED | {"x-msg-x-a": "1"})
    assert (sent.status_code, sent.content) == (201, b"")
    got = await gateway.http.delete(MESSAGES)
    assert (got.content, got.headers["content-type"]) == (b"hi", "text/plain")
    assert (got.headers["ce-id"], got.headers["ce-subject"]) == ("a-1", "na%C3%AFve%20idea")
    assert got.headers["x-msg-x-a"] == "1"
    assert got.headers["x-msg-id"] == sent.headers["x-msg-id"]


@pytest.mark.anyio
async def test_ttl_and_delay_apply_to_cloud_events(gateway: Running) -> None:
    sent = await gateway.http.post(MESSAGES + "?delay=100", content=orjson.dumps(EVENT), headers=STRUCTURED)
    assert sent.status_code == 201
    assert await gateway.counts() == (0, 0, 1)


@pytest.mark.anyio
async def test_batch_of_events_is_stored_as_single_messages(gateway: Running) -> None:
    events = [EVENT | {"id": str(number), "data": number} for number in range(3)]
    sent = await gateway.http.post(MESSAGES + "/batch", content=orjson.dumps(events), headers=BATCH)
    assert sent.status_code == 201
    assert len(sent.json()["ids"]) == 3
    for number in range(3):
        got = await gateway.http.delete(MESSAGES)
        assert (got.headers["ce-id"], got.content) == (str(number), b"%d" % number)


@pytest.mark.anyio
async def test_one_invalid_event_refuses_the_batch(gateway: Running) -> None:
    for events in ([EVENT, {"id": "x"}], [], EVENT):
        sent = await gateway.http.post(MESSAGES + "/batch", content=orjson.dumps(events), headers=BATCH)
        assert sent.status_code == 400
    assert await gateway.counts() == (0, 0, 0)


@pytest.mark.anyio
async def test_a_batch_sent_as_one_message_is_415(gateway: Running) -> None:
    sent = await gateway.http.post(MESSAGES, content=orjson.dumps([EVENT]), headers=BATCH)
    assert sent.status_code == 415
    assert "batch" in sent.json()["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("event", [{**EVENT, "subject": "a\nb"}, {**EVENT, "subject": "a\0b"}, {"x": 1}, []])
async def test_a_bad_event_is_400(gateway: Running, event: Any) -> None:
    sent = await gateway.http.post(MESSAGES, content=orjson.dumps(event), headers=STRUCTURED)
    assert sent.status_code == 400
    assert await gateway.counts() == (0, 0, 0)


@pytest.mark.anyio
async def test_cloud_event_data_has_the_message_size_limit(gateway: Running) -> None:
    for size, status in ((65_536, 201), (65_537, 413)):
        event = EVENT | {"datacontenttype": "text/plain", "data": "x" * size}
        sent = await gateway.http.post(MESSAGES, content=orjson.dumps(event), headers=STRUCTURED)
        assert sent.status_code == status
