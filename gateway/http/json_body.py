"""Reading JSON that clients send: the one reader of this room, with bounds that are known before anything is built.

A text is refused for what it would cost (`VALUES_MAX`, `DEPTH_MAX`) and for what it could hide (a name given twice
in one object). Most texts are proved harmless by counting single bytes, which is far cheaper than parsing. Only if a
count leaves that open, strings are cut out and what is left is looked at exactly.
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
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[{,:"')


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text; raise BadRequest, which names the rule that was broken.

    Whole numbers that 64 bits can't hold become floats.
    """
    size = len(text)
    if size > VALUES_MAX and _values(text) > VALUES_MAX and _values(_skeleton(text)) > VALUES_MAX:
        raise _too_many_values()
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"bad JSON: {error}") from None
    if isinstance(value, dict):
        members = len(value)
        containers = 1
    elif isinstance(value, list):
        sizes = [len(item) for item in value if isinstance(item, dict)]
        members = sum(sizes)
        containers = 1 + len(sizes)
    else:
        return value
    opens = text.count(b"[") + text.count(b"{") if size > 2 * DEPTH_MAX else 0  # else it can't be deep
    # Each member has a colon of its own: with no more colons than members no name came twice. Likewise, with no more
    # brackets than the outer two levels have there is nothing deeper.
    harmless = max(containers, DEPTH_MAX)
    if text.count(b":") > members or opens > harmless:
        skeleton = _skeleton(text)
        if skeleton.count(b":") > members or skeleton.count(b"[") + skeleton.count(b"{") > harmless:
            _walk(text, value, skeleton.count(b":"))
    return value


def _values(text: bytes) -> int:
    """Return how many values a text can have, if there are no strings in it; it need not be JSON."""
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
            below += [item for item in inside if isinstance(item, dict | list)]
        level = below
    if depth > DEPTH_MAX:
        raise BadRequest(f"bad JSON: it is nested deeper than {DEPTH_MAX}")
    if colons > members:
        _refuse_repeated(text)


def _skeleton(text: bytes) -> bytes:
    """Return what of a JSON text is structure: `[{,:` outside of its strings, and maybe their marks; of what is not
    JSON, anything.

    Raise BadRequest if it has more strings than its values can need.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _NO_STRUCTURE)
    marks = text.count(b'"')
    if marks > 4 * VALUES_MAX:  # a name and a value, two each
        raise _too_many_values()
    # Most strings are empty without what is no structure anywhere, and no two stand next to each other. Mostly all
    # are: if each mark has its neighbour, then from the first one on each two are a string, and nothing is cut out.
    if 2 * text.count(b'""') == marks:
        return text
    return b"".join(text.replace(b'""', b"").split(b'"')[::2])


def _too_many_values() -> BadRequest:
    return BadRequest(f"bad JSON: it has more than {VALUES_MAX} values")


def _refuse_repeated(text: bytes) -> NoReturn:
    """Raise BadRequest for a name that came twice; finding out which takes long, so only in a small text."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"bad JSON: the name {name[:80]!r} stands twice in one object")
            seen.add(name)

    if len(text) <= _NAMED_BYTES_MAX:
        json.loads(text, object_pairs_hook=look, parse_int=len, parse_float=len)
    raise BadRequest("bad JSON: a name stands twice in one object")


def check_members(fields: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raise BadRequest for a member that is not known; `what` says what the object is, as in "a lease"."""
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"unknown member {unknown[:80]!r}; {what} may have {', '.join(known)}")


async def read_object(
    scope: AnyScope, receive: Receive, bytes_max: int, what: str = "", known: Collection[str] = ()
) -> dict[str, Any]:
    """Return the JSON object in the body, {} for an empty body; raise BadRequest for anything else.

    If `known` is given, no other member may be in it.
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
