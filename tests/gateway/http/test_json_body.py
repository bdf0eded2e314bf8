"""The reader of JSON: what it refuses, and that it refuses nothing else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.errors import BadRequest
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.limits import DEPTH_MAX, VALUES_MAX
from tests.kit.gateway import MESSAGES, QUEUE, Running

EVENT = {"content-type": "application/cloudevents+json"}

texts = st.text(st.sampled_from('ab"\\:{}[],') | st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=40
)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_valid_json_is_parsed_unchanged(value: Any, indent: int | None, as_ascii: bool) -> None:
    assert parse_json(json.dumps(value, indent=indent, ensure_ascii=as_ascii).encode()) == value


@given(values, texts, values, texts, values)
def test_duplicate_name_is_refused_at_any_depth(outer: Any, name: str, first: Any, other: str, second: Any) -> None:
    twice = f"{{{json.dumps(name)}: {json.dumps(first)}, {json.dumps(name)}:{json.dumps(second)}}}"
    for text in (twice, f'[{json.dumps(outer)}, {{"in": [{twice}]}}]', f"{{{json.dumps(other)}:{twice}}}"):
        with pytest.raises(BadRequest, match="appears twice"):
            parse_json(text.encode())


def test_duplicate_name_is_reported_except_in_large_texts() -> None:
    with pytest.raises(BadRequest, match=r"bad JSON: the name 'ttl' appears twice in one object"):
        parse_json(b'{"ttl":1,"message":"http://x","ttl":2}')
    with pytest.raises(BadRequest, match=r"bad JSON: a name appears twice in one object"):
        parse_json(b'{"ttl":1,"message":"%b","ttl":2}' % (b"x" * 100_000))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[1,{"a":', b"}]")])
def test_nesting_is_limited(opening: bytes, closing: bytes) -> None:
    levels = opening.count(b"[") + opening.count(b"{")
    count = DEPTH_MAX // levels
    parse_json(opening * count + b"1" + closing * count)
    for count in (DEPTH_MAX // levels + 1, 500, 100_000):
        with pytest.raises(BadRequest, match="bad JSON"):
            parse_json(opening * count + b"1" + closing * count)


def test_deep_nesting_is_detected_beside_many_flat_objects() -> None:
    deep = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    with pytest.raises(BadRequest, match="nested deeper"):
        parse_json(b"[" + b'{"a":"x"},' * 1000 + b"1," * 1000 + deep + b"]")


@pytest.mark.parametrize("item", [b"1", b"{}", b"[]", b'""', b'{"a":1}', b'"a,b"'])
def test_number_of_values_is_limited_before_parsing(item: bytes) -> None:
    text = b"[" + item + (b"," + item) * VALUES_MAX + b"]"
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=f"bad JSON: it has more than {VALUES_MAX} values"):
            parse_json(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000, "what was refused was built first"


def test_commas_and_brackets_in_strings_are_not_counted() -> None:
    text = '{"a": [' * 400_000
    assert parse_json(orjson.dumps({"message": text})) == {"message": text}
    members = {f"k{n}": n for n in range(VALUES_MAX - 1)}
    assert parse_json(orjson.dumps(members)) == members


@pytest.mark.parametrize("text", [b"", b"{", b"nan", b"[1,]", b"\xef\xbb\xbf{}", b'"\xff"', b"{'a':1}", b"\x00"])
def test_malformed_json_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest, match="bad JSON"):
        parse_json(text)


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [101, 1000, 100_000])
async def test_deeply_nested_event_is_400(gateway: Running, depth: int) -> None:
    data = b"[" * depth + b"]" * depth
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":%b}' % data
    reply = await gateway.http.post(MESSAGES, content=event, headers=EVENT)
    assert reply.status_code == 400
    assert reply.json()["detail"].startswith("bad JSON: ")
    assert await gateway.counts() == (0, 0, 0)


@pytest.mark.anyio
async def test_event_with_a_duplicate_name_is_refused(gateway: Running) -> None:
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1,"a":2}}'
    reply = await gateway.http.post(MESSAGES, content=event, headers=EVENT)
    assert (reply.status_code, reply.json()["detail"]) == (400, "bad JSON: the name 'a' appears twice in one object")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("/messages/lease", {"count": 1, "second": 5}),
        ("/messages/ack", {"ackIds": [], "ack_ids": []}),
        ("/messages/nack", {"ackIds": [], "requeue": False}),
        ("/messages/extend", {"ackIds": [], "wait": 5}),
        ("/messages/batch", [{"message": "a"}, {"message": "b", "order": 1}]),
        ("/redrive", {"limits": 5}),
    ],
)
async def test_unknown_member_is_refused(gateway: Running, call: str, body: Any) -> None:
    await gateway.publish("stays")
    reply = await gateway.http.post(QUEUE + call, json=body)
    wrong = list(body[-1] if isinstance(body, list) else body)[-1]
    assert reply.status_code == 400
    assert f"unknown member {wrong!r}" in reply.json()["detail"]
    assert await gateway.counts() == (1, 0, 0)


@pytest.mark.anyio
async def test_leased_or_peeked_json_can_be_republished(gateway: Running) -> None:
    await gateway.publish("a", **{"x-msg-x-colour": "red", "ce-id": "7"})
    peeked = (await gateway.http.get(MESSAGES)).json()["messages"]
    leased = (await gateway.http.post(MESSAGES + "/lease", json={})).json()["messages"]
    assert (await gateway.http.post(MESSAGES + "/batch", json=[*peeked, *leased])).status_code == 201
