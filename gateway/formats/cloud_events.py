"""CloudEvents 1.0: their attributes as message metadata.

The attribute `source` becomes the line `ce-source` of a message: in JSON the member `ce-source`, over HTTP the header
`ce-source` (binary mode). An event in structured mode is converted to the same form when it is received, so consumers
do not depend on the mode that a producer chose.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from curbstone.core.errors import BadRequest
from curbstone.gateway.http.json_body import parse_json

PREFIX = "ce-"
STRUCTURED = b"application/cloudevents+json"
BATCH = b"application/cloudevents-batch+json"

_REQUIRED = ("id", "source", "type")
_NOT_ATTRIBUTES = frozenset(("data", "data_base64", "datacontenttype"))
_NAME = re.compile(r"[a-z0-9]{1,100}", re.ASCII)
_BREAKS_LINES = re.compile(r"[\r\n\0]")
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)
_JSON_TYPE = re.compile(r"[^/;]+/(?:[^/;]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
# Percent-encoded are space, double quote, percent sign and everything except printable ASCII.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


@lru_cache(maxsize=128)
def mode_of(fields: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return STRUCTURED or BATCH if the content type is one of them, else b""."""
    content_type = next((value for name, value in fields if name == b"content-type"), b"")
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type if media_type in (STRUCTURED, BATCH) else b""


# ---------------------------------------------------------------- binary mode


def value_of_header(raw: bytes) -> str:
    """Return the attribute in a `ce-` header: unquoted and percent-decoded."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = _BACKSLASHED.sub(r"\1", text[1:-1])
    if not _ESCAPED.search(text):
        return text
    try:
        plain = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text
    return text if _BREAKS_LINES.search(plain) else plain


def header_of_value(value: str) -> bytes:
    """Return an attribute encoded as the value of its header."""
    return quote(value, safe=_SAFE).encode()


# ---------------------------------------------------------------- structured mode


def message_fields(event: Any) -> tuple[dict[str, str], bytes]:
    """Return an event's metadata, with the names that JSON has for them, and its body; raise BadRequest."""
    if not isinstance(event, dict):
        raise BadRequest("bad CloudEvent: it must be a JSON object")
    if event.get("specversion") != "1.0":
        raise BadRequest('bad CloudEvent: specversion must be "1.0"')
    for name in _REQUIRED:
        if not isinstance(event.get(name), str) or not event[name]:
            raise BadRequest(f"bad CloudEvent: {name} must be a string that is not empty")
    fields = {}
    for name, value in event.items():
        if name not in _NOT_ATTRIBUTES and value is not None:
            if not _NAME.fullmatch(name):
                raise BadRequest(f"bad CloudEvent: attribute {name[:80]!r} is not 1 to 100 of a-z 0-9")
            fields[PREFIX + name] = _text_of(name, value)
    content_type = event.get("datacontenttype")
    if content_type is not None and not isinstance(content_type, str):
        raise BadRequest("bad CloudEvent: datacontenttype must be a string")
    body = _body(event, content_type)
    if content_type or event.get("data") is not None:
        fields["Content-Type"] = content_type or "application/json"
    return fields, body


def _text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise BadRequest(f"bad CloudEvent: attribute {name} must be a string, a boolean or an integer")


def _body(event: Mapping[str, Any], content_type: str | None) -> bytes:
    data = event.get("data")
    if "data_base64" in event:
        encoded = event["data_base64"]
        if "data" in event or not isinstance(encoded, str):
            raise BadRequest("bad CloudEvent: data_base64 must be a string, and the only data")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("bad CloudEvent: data_base64 is not base64") from None
    if data is None:
        return b""
    if isinstance(data, str) and content_type and not _JSON_TYPE.fullmatch(content_type):
        return data.encode()
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise BadRequest("bad CloudEvent: a number in data is too large") from None


def parse(text: bytes) -> Any:
    """Return the value of a JSON text, with whole numbers of any size exact; raise BadRequest."""
    parse_json(text)  # strict about Unicode and nesting, but turns large whole numbers into floats
    try:
        return json.loads(text)
    except ValueError as error:  # a number of thousands of digits
        raise BadRequest(f"bad JSON: {str(error)[:200]}") from None
