"""Request bodies as msgspec structs, whose members carry the rules that errors quote.

A whole number may also be given as 5.0 or as text, because JSON does not distinguish 5.0 from 5 and form fields have
only text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec
from starlette.types import Receive

from curbstone.core.errors import BadRequest
from curbstone.gateway.http.body import read_body
from curbstone.gateway.http.json_body import check_members, parse_json
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import SECONDS_MAX

_AT_MEMBER = re.compile(r"`\$\.([A-Za-z_]+)")
_MISSING = re.compile(r"missing required field `([A-Za-z_]+)`")


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request. `what` is what errors call it, as in "a lease". Each member has a rule beside its type."""

    what: ClassVar[str] = "the body"
    may_be_null: ClassVar[tuple[str, ...]] = ()
    """Members that may be null, which means the same as leaving them out."""


B = TypeVar("B", bound=Body)


def rule(text: str, **bounds: Any) -> msgspec.Meta:
    """Return a rule, as errors quote it, with its bounds (see `msgspec.Meta`)."""
    return msgspec.Meta(description=text, **bounds)


def whole(least: int, most: int, meaning: str = "") -> msgspec.Meta:
    """Return the rule of a whole number; `meaning` says what the number is if its name does not."""
    return rule(f"{meaning and meaning + ', '}a whole number from {least} to {most}", ge=least, le=most)


Seconds = Annotated[float | None, rule(f"a number of seconds from 0 to {SECONDS_MAX:g}")]
Text = Annotated[str, rule("it must be a string")]
OptionalText = Annotated[str | None, rule("it must be a string")]
Flag = Annotated[bool, rule("true or false")]


async def read_typed(scope: AnyScope, receive: Receive, bytes_max: int, kind: type[B]) -> B:
    """Return the JSON object in the body as a `kind`; an empty body is an empty object. Raise BadRequest."""
    text = await read_body(scope, receive, bytes_max)
    return typed(parse_json(text) if text else {}, kind)


def typed(value: object, kind: type[B]) -> B:
    """Return a JSON value as a `kind`; raise BadRequest, which names the member and the rule it broke."""
    if not isinstance(value, dict):
        raise BadRequest(f"{kind.what} must be a JSON object")
    check_members(value, kind.__struct_encode_fields__, kind.what)
    try:
        body = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error)
    else:
        for name, member in _members(kind):
            if name not in value or (value[name] is None and name in kind.may_be_null):
                continue
            if value[name] is None or not _is_meant(value[name], getattr(body, member)):
                raise _bad(kind, name, value)
        return body
    if at := _AT_MEMBER.search(reason):
        raise _bad(kind, at[1], value)
    missing = _MISSING.search(reason)
    assert missing, reason
    raise BadRequest(f"{missing[1]} is missing: {_rule_of(kind, missing[1])}")


def _is_meant(given: object, got: object) -> bool:
    """Return whether a value was converted without a change of meaning.

    msgspec converts numbers loosely here, and then also accepts 1 as true and "null" as None.
    """
    return not isinstance(got, bool | None) or type(given) is type(got)


def _bad(kind: type[Body], name: str, value: dict[str, Any]) -> BadRequest:
    return BadRequest(f"bad {name} {repr(value[name])[:80]}: {_rule_of(kind, name)}")


def _rule_of(kind: type[Body], name: str) -> str:
    hint = get_type_hints(kind, include_extras=True)[dict(_members(kind))[name]]
    text: str = get_args(hint)[1].description
    return text


def _members(kind: type[Body]) -> Iterable[tuple[str, str]]:
    """Return each member's name in JSON and in the struct."""
    return zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
