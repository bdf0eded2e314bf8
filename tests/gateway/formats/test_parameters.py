"""Values in queries and JSON."""

from __future__ import annotations

import pytest

from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.parameters import (
    encoding_named,
    groups_of,
    parse_query,
    seconds_ms,
    ttl_ms,
    wait_ms,
    whole_number,
)
from tests.kit.gateway import MESSAGES, Running


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        ("1", 1000),
        ("1.5", 1500),
        (".5", 500),
        (2, 2000),
        (0.25, 250),
        (0.0001, 1),
        ("1e-7", 1),
        ("2.5E1", 25_000),
    ],
)
def test_seconds_may_be_fractions(value: object, ms: int) -> None:
    assert seconds_ms("delay", value) == ms


@pytest.mark.parametrize(
    "value", ["-1", "", "abc", "1e", "nan", "inf", "1_0", " 1", "١", True, None, [], {}, -1, float("nan"), 1e300]
)
def test_invalid_seconds_are_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        seconds_ms("delay", value)


@pytest.mark.parametrize(
    ("value", "ms"), [("", 3600_000), ("0", 3600_000), (0, 3600_000), ("60", 60_000), (3600, 3600_000)]
)
def test_missing_ttl_is_the_maximum(value: object, ms: int) -> None:
    assert ttl_ms(value, 3600) == ms


@pytest.mark.parametrize("value", ["3601", "3600.001", "abc", "-1", None, 3601])
def test_a_ttl_above_the_maximum_is_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        ttl_ms(value, 3600)


def test_without_a_maximum_any_or_no_ttl_is_accepted() -> None:
    assert ttl_ms("86400", 0) == 86_400_000
    assert ttl_ms("0", 0) == 0


def test_wait_is_capped_at_thirty_seconds() -> None:
    assert wait_ms("31") == wait_ms(1e6) == 30_000
    assert wait_ms("0.5") == 500


@pytest.mark.parametrize("value", ["0", "1001", "-1", "1.0", "", "x", True, None, 1.5, float("inf"), 0, 1001])
def test_a_count_is_a_whole_number_in_bounds(value: object) -> None:
    assert whole_number("count", "1000", 1, 1000) == whole_number("count", 1000, 1, 1000) == 1000
    assert isinstance(whole_number("count", 7.0, 1, 1000), int), "JSON has one kind of number"
    with pytest.raises(BadRequest):
        whole_number("count", value, 1, 1000)


def test_first_of_repeated_parameters_wins() -> None:
    assert parse_query(b"ack&limit=5&limit=6&x=%C3%A9") == {"ack": "", "limit": "5", "x": "é"}


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(BadRequest):
        parse_query(b"&".join([b"a=1"] * 1000))


@pytest.mark.parametrize(("name", "encoding"), [("", "utf8"), ("UTF-8", "utf8"), ("Base64", "base64"), ("hex", "hex")])
def test_encodings(name: str, encoding: str) -> None:
    assert encoding_named(name) == encoding


@pytest.mark.parametrize("name", ["latin1", "base65", None, 5])
def test_unknown_encodings_are_refused(name: object) -> None:
    with pytest.raises(BadRequest):
        encoding_named(name)


def test_groups_are_a_string_or_a_list() -> None:
    assert groups_of("a,b,a") == groups_of(["a", "b"]) == ("a", "b")
    assert groups_of("") == ()


@pytest.mark.parametrize("value", ["a b", 5, None, ["a", 5], {"a": 1}, ["a/b"], [""], "a,,b"])
def test_bad_groups_are_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        groups_of(value)


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["limit=", "seconds="])
async def test_empty_parameter_differs_from_a_missing_one(gateway: Running, query: str) -> None:
    reply = await gateway.http.get(f"{MESSAGES}?{query}")
    assert reply.status_code == 400
    assert reply.json()["detail"].startswith(f"bad {query[:-1]} ''")
