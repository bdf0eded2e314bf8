"""A message's content type and application headers: in HTTP headers, in JSON, and in the engine's header block.

The lines of a header block (see `core.headers`), and their forms outside of the engine::

    content-type:v      HTTP Content-Type: v            JSON "Content-Type": "v"
    content-encoding:v  HTTP Content-Encoding: v        JSON "Content-Encoding": "v"
    traceparent:v       HTTP traceparent: v             JSON "traceparent": "v" (W3C Trace Context, so tracestate)
    x-key:v             HTTP x-key: v                   JSON "key": "v" (the ordering key)
    priority:7          HTTP x-priority: 7              JSON "priority": 7
    x-unique:v          HTTP x-unique: v                JSON "unique": "v"
    x-unique-until:v    HTTP x-unique-until: v          JSON "unique_until": "v"
    x-replace:v         HTTP x-replace: v               JSON "replace": "v"
    x-replace-max:1500  HTTP x-replace-max: 1.5         JSON "replace_max": 1.5 (seconds)
    x-batch:v           HTTP x-batch: v                 JSON "batch": "v"
    x-batch-size:3      HTTP x-batch-size: 3            JSON "batch_size": 3
    x-batch-to:v        HTTP x-batch-to: v              JSON "batch_to": "v"
    x-msg-x-foo:v       HTTP x-msg-x-foo: v             JSON "x-msg-x-foo": "v"
    x-foo:v             HTTP x-msg-x-x-foo: v           JSON "x-foo": "v"
    foo:v (STOMP's)     HTTP x-msg-x-foo: v             JSON "x-msg-x-foo": "v"
    ce-id:v             HTTP ce-id: v                   JSON "ce-id": "v" (see `cloud_events`)
    x-dead-queue:v      HTTP x-msg-dead-queue: v        JSON "dead": {"queue": "v"}

HTTP can't carry control characters, non-ASCII characters or outer spaces, so values with them are sent as
percent-encoded UTF-8. Names that are not HTTP tokens are left out. A value that was received in an HTTP header is sent
back verbatim; if it has more than printable ASCII, the line `x-http-charset` records how its bytes were decoded.
Attributes of CloudEvents are stored decoded, and encoded as their specification says when they are sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

import orjson

from curbstone.core import batches, headers, orders
from curbstone.core.errors import BadRequest
from curbstone.gateway.formats import cloud_events
from curbstone.gateway.http.fields import EVENT_PREFIX, MESSAGE_PREFIX, PRIORITY, REPLACE_MAX, TRAVELLING
from curbstone.gateway.limits import METADATA_BYTES_MAX

PREFIX = "x-msg-x-"
DEAD = "x-dead-"
CHARSET = "x-http-charset"
OCTET_STREAM = "application/octet-stream"

REPLACE_MAX_MEMBER = "replace_max"
BATCH_SIZE_MEMBER = TRAVELLING[batches.BATCH_SIZE]
_CACHED_BYTES_MAX = 512
_FROM_JSON = {json_name: name for name, json_name in TRAVELLING.items()}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?", re.ASCII)
_BREAKS_LINES = re.compile(r"[\r\n\0]")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_VERBATIM = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# Every printable ASCII character except the percent sign, which begins an escape.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_DEAD_NUMBERS = frozenset(("time", "tries"))

HttpHeaders = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")


def _cached(fn: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Cache the results for small blocks: most messages of a producer have the same one."""
    remembered = lru_cache(maxsize=1024)(fn)

    def look(block: bytes) -> T:
        return remembered(block) if len(block) <= _CACHED_BYTES_MAX else fn(block)

    return look


# ---------------------------------------------------------------- in


@lru_cache(maxsize=128)
def block_of_http(fields: HttpHeaders) -> bytes:
    """Return the header block for a request's headers, with names in lower case; repeated ones are joined."""
    merged: dict[bytes, bytes] = {}
    for name, value in fields:
        merged[name] = merged[name] + b", " + value if name in merged else value
    # Without the space, the last byte of one value and the first of the next could form one character.
    charset = _charset(b" ".join([value for name, value in merged.items() if not _is_attribute(name)]))
    if not merged.get(b"content-type"):
        merged.pop(b"content-type", None)  # an empty one means nothing; other metadata may be empty
    pairs = [(_line_name(name), _line_value(name, value, charset)) for name, value in merged.items()]
    _check(pairs)
    if charset:
        pairs.append((CHARSET, charset))
    return _limited(headers.encode(pairs))


def _is_attribute(name: bytes) -> bool:
    return name.startswith(EVENT_PREFIX)


def _line_name(name: bytes) -> str:
    return orders.PRIORITY if name == PRIORITY else name.decode("latin-1")


def _line_value(name: bytes, value: bytes, charset: str) -> str:
    if name == REPLACE_MAX:
        return _ms_of(value.decode("latin-1"))
    return cloud_events.value_of_header(value) if _is_attribute(name) else value.decode(charset or "ascii")


def _ms_of(seconds: object) -> str:
    """Return a number of seconds in ms, for a header block; raise BadRequest for anything else."""
    text = str(seconds)
    if isinstance(seconds, bool) or not _SECONDS.fullmatch(text):
        raise BadRequest(f"bad {REPLACE_MAX_MEMBER}: {text[:80]!r} is not a number of seconds")
    return str(round(float(text) * 1000))


def _seconds_of(ms: str) -> int | float:
    return int(ms) // 1000 if int(ms) % 1000 == 0 else int(ms) / 1000


def _is_replace_max(name: str, value: str) -> bool:
    return name == orders.REPLACE_MAX and value.isdecimal() and value.isascii()


def _charset(values: bytes) -> str:
    """Return the charset to decode these header values with; "" if they are printable ASCII."""
    if values.isascii():
        return "utf-8" if b"\t" in values else ""
    try:
        values.decode()
    except UnicodeDecodeError:
        return "iso-8859-1"
    return "utf-8"


def block_of_json(fields: Mapping[str, Any]) -> bytes:
    """Return the header block for the metadata in a JSON object: Content-Type, `TRAVELLING`, priority, x- and ce-.

    Raise BadRequest for a value that is not a string (the priority is a number), and for CR, LF and NUL.
    """
    pairs = []
    for name, value in fields.items():
        if name.startswith("x-"):
            if name.startswith(DEAD) or name == CHARSET:
                continue
        elif name == "Content-Type":
            name = headers.CONTENT_TYPE
            if value == "":
                continue
        elif name == BATCH_SIZE_MEMBER:
            name, value = batches.BATCH_SIZE, _digits(name, value)
        elif name in _FROM_JSON:
            name = _FROM_JSON[name]
        elif name == orders.PRIORITY:
            value = _digits(name, value)
        elif name == REPLACE_MAX_MEMBER:
            name, value = orders.REPLACE_MAX, _ms_of(value)
        elif not name.startswith(cloud_events.PREFIX):
            continue
        if not isinstance(value, str):
            raise BadRequest(f"bad metadata {name[:80]!r}: the value must be a string")
        if _BREAKS_LINES.search(value) or _BREAKS_LINES.search(name):
            raise BadRequest(f"bad metadata {name[:80]!r}: CR, LF and NUL are not allowed")
        pairs.append((name, value))
    _check(pairs)
    return _limited(headers.encode(pairs)) if pairs else b""


def _digits(name: str, number: object) -> str:
    if isinstance(number, bool) or not isinstance(number, int):
        raise BadRequest(f"bad {name}: {str(number)[:80]!r} is not a whole number")
    return str(number)


def _check(pairs: list[tuple[str, str]]) -> None:
    """Raise BadRequest if the ordering key, the priority, the unique name or the batch is not allowed."""
    named: dict[str, str] = {}
    batch: dict[str, str] = {}
    for name, value in pairs:
        if name in orders.NAMES:
            named.setdefault(name, value)
        elif name in batches.HEADERS:
            batch.setdefault(name, value)
        try:
            if name == headers.KEY:
                headers.check_key(value)
            elif name == orders.PRIORITY:
                orders.parse_priority(value)
        except ValueError as error:
            what = "key" if name == headers.KEY else f"priority {value[:80]!r}"
            raise BadRequest(f"bad {what}: {error}") from None
    if named:
        try:
            orders.check_names(named)
        except ValueError as error:
            raise BadRequest(f"bad name: {error}") from None
    if batch:
        try:
            batches.check_batch(batch)
        except ValueError as error:
            raise BadRequest(f"bad batch: {error}") from None


def _is_priority(name: str, value: str) -> bool:
    """Return whether a line is a priority. Earlier versions took any text for one."""
    try:
        return name == orders.PRIORITY and orders.parse_priority(value) >= 0
    except ValueError:
        return False


def _limited(block: bytes) -> bytes:
    if len(block) > METADATA_BYTES_MAX:
        raise BadRequest(f"the metadata is larger than {METADATA_BYTES_MAX} bytes")
    return block


# ---------------------------------------------------------------- out to HTTP


@_cached
def http_headers(block: bytes) -> HttpHeaders:
    """Return a message's headers for an HTTP reply, including Content-Type."""
    lines = headers.decode(block)
    charset = next((value for name, value in lines if name == CHARSET), "")
    found = {b"content-type": OCTET_STREAM.encode()}
    own = set()
    for name, value in lines:
        header = PRIORITY if _is_priority(name, value) else _http_name(name)
        if _is_replace_max(name, value):
            header, value = REPLACE_MAX, str(_seconds_of(value))
        if header and header not in own:
            own.add(header)
            is_attribute = _is_attribute(header)
            found[header] = cloud_events.header_of_value(value) if is_attribute else _http_value(value, charset)
    return tuple(found.items())


def _http_name(name: str) -> bytes:
    """Return the name of the reply header for a line with this name; b"" if there is none."""
    if name == headers.CONTENT_TYPE:
        return b"content-type"
    if name == CHARSET or not _TOKEN.fullmatch(name):
        return b""
    name = name.lower()
    if name in TRAVELLING or name.startswith((PREFIX, cloud_events.PREFIX)):
        return name.encode()
    if name.startswith(DEAD):
        return b"x-msg-" + name[2:].encode()
    return MESSAGE_PREFIX + name.encode()


def _http_value(value: str, charset: str) -> bytes:
    if _PRINTABLE.fullmatch(value) and value == value.strip():
        return value.encode()
    if charset in ("utf-8", "iso-8859-1"):
        raw = value.encode(charset, "replace")
        if _VERBATIM.fullmatch(raw) and raw == raw.strip():
            return raw
    inner = value.strip(" ")
    before, _, after = value.partition(inner) if inner else (value, "", "")
    return ("%20" * len(before) + quote(inner, safe=_SAFE) + "%20" * len(after)).encode()


# ---------------------------------------------------------------- out to JSON


@_cached
def json_parts(block: bytes) -> tuple[bytes, bytes]:
    """Return a message's metadata as two pieces of the inside of a JSON object.

    The first piece is the Content-Type, `"Content-Type":"text/plain"`. The second has all other members, each after a
    comma, as in `,"x-msg-x-a":"1"`; it is empty if there are none.
    """
    content_type = OCTET_STREAM
    own: dict[str, object] = {}
    dead: dict[str, object] = {}
    for name, value in reversed(headers.decode(block)):  # so that the first of repeated names wins
        if name == headers.CONTENT_TYPE:
            content_type = value
        elif name.startswith(DEAD):
            key = name.removeprefix(DEAD)
            dead[key] = int(value) if key in _DEAD_NUMBERS and value.isdecimal() else value
        elif name in TRAVELLING:
            own[TRAVELLING[name]] = int(value) if name == batches.BATCH_SIZE and value.isdecimal() else value
        elif _is_priority(name, value):
            own[name] = int(value)
        elif _is_replace_max(name, value):
            own[REPLACE_MAX_MEMBER] = _seconds_of(value)
        elif name != CHARSET:
            own[name if name.startswith(("x-", cloud_events.PREFIX)) else PREFIX + name] = value
    inside: dict[str, object] = dict(_reversed(own))
    if dead:
        inside["dead"] = dict(_reversed(dead))
    tail = b"," + orjson.dumps(inside)[1:-1] if inside else b""
    return b'"Content-Type":' + orjson.dumps(content_type), tail


def _reversed(fields: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    return reversed(list(fields.items()))
