"""Reads the JSON that clients send, with bounds that are checked before anything is built from it.

A text is refused if its value would cost too much (`VALUES_MAX`, `DEPTH_MAX`), or if it is ambiguous (a name given
twice in one object). Counting single bytes, which is far cheaper than parsing, proves most texts harmless. Only if the
counts are inconclusive are the strings cut out and the rest examined exactly.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import orjson
from starlette.types import Receive

from curbstone.core.errors import BadRequest
from curbstone.gateway.http.body import read_body
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import DEPTH_MAX, VALUES_MAX

_NAMED_BYTES_MAX = 64 * 1024
_CONTAINERS = (dict, list)  # a tuple, because a union would be built for each check
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[{,:"')


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text; raise BadRequest, which names the broken rule.

    Whole numbers that do not fit into 64 bits become floats.
    """
    size = len(text)
    if size > VALUES_MAX and _values(text) > VALUES_MAX and _values(_skeleton(text)) > VALUES_MAX:
        raise _too_many_values()
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"bad JSON: {error}") from None
    if isinstance(value, dict):
        inside = [item for item in value.values() if isinstance(item, _CONTAINERS)]
        members = len(value) + sum([len(item) for item in inside if isinstance(item, dict)])
        containers = 1 + len(inside)
    elif isinstance(value, list):
        sizes = [len(item) for item in value if isinstance(item, dict)]
        members = sum(sizes)
        containers = 1 + len(sizes)
    else:
        return value
    opens = text.count(b"[") + text.count(b"{") if size > 2 * DEPTH_MAX else 0  # a shorter text can't be too deep
    # Each member has a colon of its own. So if the text has no more colons than the two outer levels have members, no
    # name was given twice. Likewise, if it has no more brackets than those levels have, nothing is nested deeper.
    harmless = max(containers, DEPTH_MAX)
    if text.count(b":") > members or opens > harmless:
        skeleton = _skeleton(text)
        if skeleton.count(b":") > members or skeleton.count(b"[") + skeleton.count(b"{") > harmless:
            _walk(text, value, skeleton.count(b":"))
    return value


def _values(text: bytes) -> int:
    """Return the most values that a text without strings can have; it need not be valid JSON."""
    return len(text) - len(text.translate(None, b"[{,"))


def _walk(text: bytes, value: Any, colons: int) -> None:
    """Raise BadRequest if the value of this text nests too deep, or has fewer members than the text has colons."""
    members = depth = 0
    level = [value]
    while level:
        depth += 1
        below: list[Any] = []
        for container in level:
            inside = container
            if isinstance(container, dict):
                members += len(container)
                inside = container.values()
            below += [item for item in inside if isinstance(item, _CONTAINERS)]
        level = below
    if depth > DEPTH_MAX:
        raise BadRequest(f"bad JSON: it is nested deeper than {DEPTH_MAX}")
    if colons > members:
        _refuse_repeated(text)


def _skeleton(text: bytes) -> bytes:
    """Return the structural bytes of a JSON text: `[{,:` outside of its strings, and maybe quotation marks.

    For a text that is not JSON the result means nothing. Raise BadRequest if it has more strings than its values can
    need.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _NO_STRUCTURE)
    marks = text.count(b'"')
    if marks > 4 * VALUES_MAX:  # two for a name and two for a value
        raise _too_many_values()
    # With the other bytes deleted, most strings are empty, and no two strings are adjacent. If all quotation marks are
    # in adjacent pairs, each pair is an empty string, and nothing has to be cut out.
    if 2 * text.count(b'""') == marks:
        return text
    return b"".join(text.replace(b'""', b"").split(b'"')[::2])


def _too_many_values() -> BadRequest:
    return BadRequest(f"bad JSON: it has more than {VALUES_MAX} values")


def _refuse_repeated(text: bytes) -> NoReturn:
    """Raise BadRequest for a name given twice. The name is found only in a small text, because that takes long."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"bad JSON: the name {name[:80]!r} appears twice in one object")
            seen.add(name)

    if len(text) <= _NAMED_BYTES_MAX:
        json.loads(text, object_pairs_hook=look, parse_int=len, parse_float=len)
    raise BadRequest("bad JSON: a name appears twice in one object")


def check_members(fields: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raise BadRequest for a member that is not known; `what` is what errors call the object, as in "a lease"."""
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"unknown member {unknown[:80]!r}; {what} may have {', '.join(known)}")


async def read_object(
    scope: AnyScope, receive: Receive, bytes_max: int, what: str = "", known: Collection[str] = ()
) -> dict[str, Any]:
    """Return the JSON object in the body, or {} for an empty body; raise BadRequest for anything else.

    If `known` is given, the object may have only these members.
    """
    text = await read_body(scope, receive, bytes_max)
    if not text:
        return {}
    value = parse_json(text)
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    if known:
        check_members(value, known, what)
    return value
