"""Bodies as types: what is wrong is reported with the member and the rule that it broke."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from curbstone.core.errors import BadRequest
from curbstone.gateway.http.typed_body import Body, Flag, OptionalText, Seconds, rule, typed, whole


class Order(Body):
    what = "an order"
    may_be_null = ("note",)

    up_to: Annotated[int, whole(0, 9, "the last that is done")] = msgspec.field(name="upTo")
    count: Annotated[int, whole(1, 10)] = 1
    ack_ids: Annotated[list[str], rule("a list of strings")] = msgspec.field(name="ackIds", default_factory=list)
    delay: Seconds = None
    parts: Annotated[list[str] | None, rule("a list of strings")] = None
    note: OptionalText = None
    is_urgent: Flag = False
    size: Annotated[Literal["s", "m"] | None, rule("s or m")] = None
    shelf: Annotated[str, rule("1 to 3 letters", pattern=r"\A[a-z]{1,3}\Z")] = ""


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ({"count": 0}, "bad count 0: a whole number from 1 to 10"),
        ({"count": 11}, "bad count 11: a whole number from 1 to 10"),
        ({"count": 1.5}, "bad count 1.5: a whole number from 1 to 10"),
        ({"count": "one"}, "bad count 'one': a whole number from 1 to 10"),
        ({"count": True}, "bad count True: a whole number from 1 to 10"),
        ({"count": None}, "bad count None: a whole number from 1 to 10"),
        ({"upTo": -1}, "bad upTo -1: the last that is done, a whole number from 0 to 9"),
        ({"ackIds": "a"}, "bad ackIds 'a': a list of strings"),
        ({"ackIds": ["a", 1]}, "bad ackIds ['a', 1]: a list of strings"),
        ({"delay": "null"}, "bad delay 'null': a number of seconds from 0 to 3.1536e+08"),
        ({"delay": None}, "bad delay None: a number of seconds from 0 to 3.1536e+08"),
        ({"parts": "null"}, "bad parts 'null': a list of strings"),
        ({"delay": "soon"}, "bad delay 'soon': a number of seconds from 0 to 3.1536e+08"),
        ({"note": 1}, "bad note 1: it must be a string"),
        ({"is_urgent": "yes"}, "bad is_urgent 'yes': true or false"),
        ({"is_urgent": 1}, "bad is_urgent 1: true or false"),
        ({"is_urgent": "true"}, "bad is_urgent 'true': true or false"),
        ({"size": "x" * 200}, f"bad size '{'x' * 79}: s or m"),
        ({"shelf": "ab\n"}, r"bad shelf 'ab\n': 1 to 3 letters"),
        ({"ack_ids": []}, "unknown member 'ack_ids'; an order may have upTo, count, ackIds, delay, parts, "),
        ([], "an order must be a JSON object"),
    ],
)
def test_invalid_member_is_named_with_its_rule(value: object, reported: str) -> None:
    if isinstance(value, dict):
        value = {"upTo": 1, **value}
    with pytest.raises(BadRequest) as caught:
        typed(value, Order)
    assert str(caught.value).startswith(reported)


def test_missing_member_is_named_with_its_rule() -> None:
    with pytest.raises(BadRequest, match="upTo is missing: the last that is done, a whole number from 0 to 9"):
        typed({}, Order)


def test_numbers_are_accepted_as_strings_and_floats() -> None:
    order = typed({"upTo": "7", "count": 5.0, "delay": "1.5"}, Order)
    assert (order.up_to, order.count, order.delay) == (7, 5, 1.5)
    assert type(order.count) is int


def test_null_is_accepted_for_nullable_members() -> None:
    assert typed({"upTo": 1, "note": None}, Order).note is None
