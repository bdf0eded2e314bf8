"""Metadata in HTTP headers, in JSON, and in the engine's header block."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from curbstone.core import headers
from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.metadata import (
    OCTET_STREAM,
    block_of_http,
    block_of_json,
    http_headers,
    json_parts,
)
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.limits import METADATA_BYTES_MAX


def json_of(block: bytes) -> dict[str, Any]:
    content_type, tail = json_parts(block)
    value: dict[str, Any] = orjson.loads(b"{" + content_type + tail + b"}")
    return value


def http_of(block: bytes) -> dict[bytes, bytes]:
    return dict(http_headers(block))


def test_only_content_type_and_application_headers_are_kept() -> None:
    names = [b"content-type", b"x-msg-x-a", b"x-msg-y", b"x-msg-id", b"x-a", b"host", b"content-length"]
    assert Fields([(name, b"") for name in names]).of_message == [(b"content-type", b""), (b"x-msg-x-a", b"")]


def test_http_headers_become_headers_of_the_same_name() -> None:
    block = block_of_http(((b"content-type", b"text/plain"), (b"x-msg-x-foo", b"Bar: baz\\")))
    assert headers.decode(block) == [("content-type", "text/plain"), ("x-msg-x-foo", "Bar: baz\\")]


def test_a_repeated_http_header_is_joined() -> None:
    assert headers.decode(block_of_http(((b"x-msg-x-a", b"1"), (b"x-msg-x-a", b"2")))) == [("x-msg-x-a", "1, 2")]


def test_a_message_without_metadata_is_an_octet_stream() -> None:
    assert block_of_http(()) == b""
    assert http_of(b"") == {b"content-type": OCTET_STREAM.encode()}
    assert json_of(b"") == {"Content-Type": OCTET_STREAM}


@pytest.mark.parametrize(
    "value",
    [b"plain", b"50%", b"a%20b", b"a\tb", "é".encode(), b"\xe9", "日本".encode(), b'"quoted": \\ value', b"\xff\xfe"],
)
def test_http_header_round_trips_verbatim(value: bytes) -> None:
    block = block_of_http(((b"content-type", b"text/plain"), (b"x-msg-x-v", value)))
    assert http_of(block) == {b"content-type": b"text/plain", b"x-msg-x-v": value}


@pytest.mark.parametrize(("raw", "text"), [("é".encode(), "é"), (b"\xe9", "é"), (b"a\tb", "a\tb")])
def test_bytes_of_an_http_header_are_read_as_utf8_else_as_latin1(raw: bytes, text: str) -> None:
    assert json_of(block_of_http(((b"x-msg-x-v", raw),)))["x-msg-x-v"] == text


def test_values_of_two_headers_that_are_utf8_only_when_joined_are_latin1() -> None:
    fields = ((b"x-msg-x-a", b"\xc3"), (b"x-msg-x-b", b"\xa9"))
    assert http_of(block_of_http(fields)) == {b"content-type": OCTET_STREAM.encode(), **dict(fields)}


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("plain", b"plain"),
        ("50%", b"50%"),
        ("é", b"%C3%A9"),
        ("100 % é", b"100 %25 %C3%A9"),
        ("a\tb", b"a%09b"),
        (" outer ", b"%20outer%20"),
        ("  ", b"%20%20"),
        ("\x7f", b"%7F"),
        ("\u2028", b"%E2%80%A8"),
        ("", b""),
    ],
)
def test_unrepresentable_header_values_are_percent_encoded(value: str, header: bytes) -> None:
    block = block_of_json({"x-msg-x-v": value})
    assert http_of(block)[b"x-msg-x-v"] == header
    assert json_of(block)["x-msg-x-v"] == value


def test_line_breaks_of_a_stomp_header_never_split_a_reply() -> None:
    block = headers.encode([("evil", "a\r\nset-cookie: b"), ("content-type", "text/plain\r\nx: y")])
    found = http_of(block)
    assert found[b"x-msg-x-evil"] == b"a%0D%0Aset-cookie: b"
    assert found[b"content-type"] == b"text/plain%0D%0Ax: y"


def test_a_forged_charset_never_splits_a_reply() -> None:
    block = headers.encode([("foo", "a\r\nb"), ("x-http-charset", "utf-8")])
    assert http_of(block)[b"x-msg-x-foo"] == b"a%0D%0Ab"


def test_other_stomp_headers_get_the_prefix() -> None:
    block = headers.encode([("foo", "1"), ("x-msg-x-bar", "2"), ("Priority", "3"), ("x-baz", "4")])
    http = http_of(block)
    assert http[b"x-msg-x-foo"] == b"1"
    assert http[b"x-msg-x-bar"] == b"2"
    assert http[b"x-msg-x-priority"] == b"3"
    assert http[b"x-msg-x-x-baz"] == b"4"
    assert json_of(block) == {
        "Content-Type": OCTET_STREAM,
        "x-msg-x-foo": "1",
        "x-msg-x-bar": "2",
        "x-msg-x-Priority": "3",
        "x-baz": "4",
    }


def test_header_names_invalid_in_http_are_omitted() -> None:
    block = headers.encode([("my header", "1"), ("é", "2"), ("", "3"), ("a:b", "4")])
    assert list(http_of(block)) == [b"content-type"]
    assert json_of(block)["x-msg-x-my header"] == "1"


def test_first_of_repeated_headers_wins() -> None:
    block = headers.encode([("foo", "1"), ("foo", "2"), ("content-type", "a/b"), ("content-type", "c/d")])
    assert http_of(block) == {b"content-type": b"a/b", b"x-msg-x-foo": b"1"}
    assert json_of(block) == {"Content-Type": "a/b", "x-msg-x-foo": "1"}


def test_json_keeps_its_content_type_and_everything_with_an_x() -> None:
    fields = {"Content-Type": "a/b", "x-msg-x-a": "1", "x-b": "2", "ttl": 5, "message": "m", "other": 7}
    assert headers.decode(block_of_json(fields)) == [("content-type", "a/b"), ("x-msg-x-a", "1"), ("x-b", "2")]


def test_reserved_names_are_not_taken_from_json() -> None:
    assert block_of_json({"x-dead-queue": "q", "x-http-charset": "utf-8"}) == b""


@pytest.mark.parametrize("value", [1, None, True, {}, [], 1.5])
def test_non_string_metadata_is_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        block_of_json({"x-msg-x-a": value})


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\0b"])
def test_metadata_with_line_breaks_or_nul_is_refused(text: str) -> None:
    for fields in ({"x-msg-x-a": text}, {"x-" + text: "v"}, {"Content-Type": text}):
        with pytest.raises(BadRequest):
            block_of_json(fields)


def test_metadata_size_is_limited() -> None:
    with pytest.raises(BadRequest):
        block_of_json({"x-msg-x-a": "v" * METADATA_BYTES_MAX})


def test_dead_letter_has_its_origin() -> None:
    origin = [("queue", "p/q"), ("reason", "rejected"), ("time", "1700000000000"), ("tries", "2"), ("error", "")]
    block = headers.encode([("x-msg-x-a", "1"), *((f"x-dead-{key}", value) for key, value in origin)])
    assert json_of(block)["dead"] == {
        "queue": "p/q",
        "reason": "rejected",
        "time": 1700000000000,
        "tries": 2,
        "error": "",
    }
    http = http_of(block)
    assert http[b"x-msg-dead-queue"] == b"p/q"
    assert http[b"x-msg-dead-tries"] == b"2"
    assert json_of(block)["x-msg-x-a"] == "1"


def test_empty_metadata_is_kept_and_empty_content_type_is_dropped() -> None:
    """Over HTTP it was dropped, over JSON it was not."""
    fields = ((b"content-type", b""), (b"x-msg-x-a", b""), (b"ce-subject", b""), (b"x-msg-x-b", b"1"))
    block = block_of_http(fields)
    assert block == block_of_json({"Content-Type": "", "x-msg-x-a": "", "ce-subject": "", "x-msg-x-b": "1"})
    assert http_of(block) == {
        b"content-type": b"application/octet-stream", b"x-msg-x-a": b"", b"ce-subject": b"", b"x-msg-x-b": b"1",
    }  # fmt: skip
    assert json_of(block) == {
        "Content-Type": "application/octet-stream", "x-msg-x-a": "", "ce-subject": "", "x-msg-x-b": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("given", "shown"), [("7", 7), ("0", 0), ("007", 7), ("255", 255)])
def test_priority_is_an_http_header_and_a_json_number(given: str, shown: int) -> None:
    block = block_of_http(((b"x-priority", given.encode()),))
    assert headers.decode(block) == [("priority", given)]
    assert http_of(block)[b"x-priority"] == given.encode()
    assert json_of(block)["priority"] == shown
    assert headers.decode(block_of_json({"priority": shown})) == [("priority", str(shown))]


@pytest.mark.parametrize("value", ["high", "-1", "256", "1.5", "", " 7", "7, 8"])
def test_invalid_priority_is_refused_and_an_earlier_one_is_a_plain_header(value: str) -> None:
    with pytest.raises(BadRequest, match="bad priority .*: it is a whole number from 0 to 9"):
        block_of_http(((b"x-priority", value.encode()),))
    block = headers.encode([("priority", value)])
    assert b"x-priority" not in http_of(block)
    assert json_of(block)["x-msg-x-priority"] == value


@pytest.mark.parametrize("value", ["7", True, None, 1.5, [7], -1, 256, 10**30])
def test_a_priority_in_json_is_a_whole_number(value: object) -> None:
    with pytest.raises(BadRequest, match="bad priority"):
        block_of_json({"priority": value})


def test_unique_name_has_its_own_headers_and_json_members() -> None:
    block = block_of_http(((b"x-unique", b"a:b"), (b"x-unique-until", b"delivered")))
    assert headers.decode(block) == [("x-unique", "a:b"), ("x-unique-until", "delivered")]
    assert (http_of(block)[b"x-unique"], http_of(block)[b"x-unique-until"]) == (b"a:b", b"delivered")
    assert (json_of(block)["unique"], json_of(block)["unique_until"]) == ("a:b", "delivered")
    assert block_of_json({"unique": "a:b", "unique_until": "delivered"}) == block


@pytest.mark.parametrize("fields", [{"unique": ""}, {"unique": "x" * 257}, {"unique_until": "settled"}])
def test_invalid_unique_name_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="bad name: x-unique"):
        block_of_json(fields)


@pytest.mark.parametrize(("seconds", "ms"), [("30", "30000"), ("1.5", "1500"), ("0.001", "1")])
def test_longest_wait_of_replacements_is_given_in_seconds(seconds: str, ms: str) -> None:
    block = block_of_http(((b"x-replace", b"a"), (b"x-replace-max", seconds.encode())))
    assert headers.decode(block) == [("x-replace", "a"), ("x-replace-max", ms)]
    assert (http_of(block)[b"x-replace"], http_of(block)[b"x-replace-max"]) == (b"a", seconds.encode())
    assert (json_of(block)["replace"], json_of(block)["replace_max"]) == ("a", float(seconds))
    assert block_of_json({"replace": "a", "replace_max": float(seconds)}) == block


@pytest.mark.parametrize("bad", ["x", True, -1, 0, None, "1s", 1e30])
def test_invalid_longest_wait_is_refused(bad: object) -> None:
    with pytest.raises(BadRequest, match="bad (replace_max|name)"):
        block_of_json({"replace": "a", "replace_max": bad})
