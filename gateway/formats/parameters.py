"""Checks values that clients send in queries and in JSON. A BadRequest names the rule that was broken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from curbstone.core.errors import BadRequest
from curbstone.core.filters import NOT_SHARED
from curbstone.core.names import group_name
from curbstone.gateway.formats.message_json import Encoding
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import LEASE_S_MAX, PARAMETERS_MAX, SECONDS_MAX, WAIT_S_MAX

SEQ_MAX = 10**15 - 1
POSITION_MAX = 2**63 - 1
_DECIMAL = re.compile(r"([0-9]{1,15}(\.[0-9]{1,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?", re.ASCII)
_ENCODINGS: dict[str, Encoding] = {"": "utf8", "utf8": "utf8", "utf-8": "utf8", "base64": "base64", "hex": "hex"}


def query_of(scope: AnyScope) -> Mapping[str, str]:
    """Return the parameters of a request's query; if one is repeated, the first counts."""
    return parse_query(scope["query_string"]) if scope["query_string"] else {}


def parse_query(text: bytes) -> Mapping[str, str]:
    """Return the parameters of a query, such as b"ack&limit=5"; if one is repeated, the first counts."""
    try:
        pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise BadRequest(f"the query has more than {PARAMETERS_MAX} parameters") from None
    return dict(reversed(pairs))


def refuse_filter(query: Mapping[str, object]) -> None:
    """Raise BadRequest for a filter on a request that takes messages from a queue."""
    if "filter" in query:
        raise BadRequest(f"filter is not supported here: {NOT_SHARED}")


def seconds_ms(name: str, value: object, most_s: float = SECONDS_MAX) -> int:
    """Return a number of seconds from 0 to `most_s` in ms. It may be a JSON number or text, and have a fraction."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most_s:
        raise BadRequest(f"bad {name} {_shown(value)}: a number of seconds from 0 to {most_s:g}")
    # A positive duration never becomes 0, because 0 means "none" to the engine.
    return max(round(value * 1000), 1) if value else 0


def ttl_ms(value: object, max_ttl_s: float) -> int:
    """Return a time to live in ms; 0 and "" mean the maximum, as in Narconi."""
    asked_ms = 0 if value == "" else seconds_ms("ttl", value, max_ttl_s or SECONDS_MAX)
    return asked_ms or round(max_ttl_s * 1000)


def wait_ms(value: object) -> int:
    """Return how long a request may wait, in ms; more than 30 s becomes 30 s."""
    return min(seconds_ms("wait", value), WAIT_S_MAX * 1000)


def lease_ms(seconds: object) -> int:
    """Return the duration of a lease in ms; raise BadRequest."""
    duration_ms = seconds_ms("seconds", seconds, LEASE_S_MAX)
    if not duration_ms:
        raise BadRequest("bad seconds 0: a lease must last longer than 0 seconds")
    return duration_ms


def whole_number(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number within these bounds. It may be a JSON number or text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most)):
        value = int(value)
    elif isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON does not distinguish 5.0 from 5
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(f"bad {name} {_shown(value)}: a whole number from {least} to {most}")
    return value


def encoding_of(query: Mapping[str, str]) -> Encoding | None:
    """Return the encoding that a consumer requests; None if it requests none."""
    name = query.get("encoding")
    return None if name is None else encoding_named(name)


def encoding_named(name: object) -> Encoding:
    """Return the encoding of that name."""
    encoding = _ENCODINGS.get(name.lower()) if isinstance(name, str) else None
    if encoding is None:
        raise BadRequest(f"bad encoding {_shown(name)}: utf8, base64 or hex")
    return encoding


def group_of(query: Mapping[str, str]) -> str:
    """Return the group that a consumer reads as; "" for the unnamed one."""
    return group_named(query.get("group", ""))


def group_named(name: str) -> str:
    """Return the group with that name, which may be empty; raise BadRequest."""
    return group_name(name) if name else ""


def groups_of(value: object) -> tuple[str, ...]:
    """Return the groups entitled to a message, from text like "a,b" or from a list."""
    names: object = value
    if isinstance(value, str):
        names = value.split(",") if value else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"bad groups {_shown(value)}: names separated by commas, or a list of names")
    return tuple(dict.fromkeys(group_name(name) for name in names))


def _shown(value: object) -> str:
    return repr(value)[:80]
