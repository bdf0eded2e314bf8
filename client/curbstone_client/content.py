"""The body and the options of a message to publish, turned into bytes and STOMP headers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from curbstone_client.wire import escape

Body = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | int | float | bool | None

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"

PREFIX = "x-msg-x-"
"""The prefix of an application's headers, which distinguishes them from headers of STOMP."""

KEY = "x-key"
"""The header with the ordering key: messages of one key are delivered one at a time, in order."""

PRIORITY = "priority"
"""The header with the priority: messages of a higher one are delivered first."""
PRIORITY_DEFAULT = 4
_PRIORITY_MAX = 255
"""The server accepts so much, as other brokers do; values above 9 count as 9."""

UNIQUE, UNIQUE_UNTIL = "x-unique", "x-unique-until"
"""The headers with the unique name: while a message with it waits in the queue, no other one is stored."""
REPLACE, REPLACE_MAX = "x-replace", "x-replace-max"
"""The headers with the name of a message that replaces the waiting one with this name."""
_UNTIL = ("settled", "delivered")
BATCH, BATCH_SIZE, BATCH_TO = "x-batch", "x-batch-size", "x-batch-to"
"""The headers with the batch of a message, how many messages it has, and the queue for its report."""

IDEMPOTENCY_KEY = "idempotency-key"
"""The header with the idempotency key: a message that is published again with the same key is stored once."""
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")

PASSED = frozenset(["correlation-id", "reply-to", "traceparent", "tracestate", "baggage"])
"""Headers without the prefix, because other programs use these names."""

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

DAY_S = 86_400
DURATION_S_MAX = 10 * 366 * DAY_S


def encode(body: Body) -> tuple[bytes, str | None]:
    """Return the bytes of a body and its content type.

    Strings and bytes are sent unchanged, everything else as JSON. Bytes have no type. Raise TypeError if the body can't
    be encoded.
    """
    if type(body) is bytes:
        return body, None
    if isinstance(body, str):
        return body.encode(), TEXT_TYPE
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), None
    try:
        return _encode_json(body).encode(), JSON_TYPE
    except TypeError:
        raise TypeError(f"a message must be bytes, text or a JSON value, not {type(body).__name__}") from None


class Options(TypedDict, total=False):
    """The options of a message, which `Target.send` describes. None has the effect of leaving an option out."""

    headers: Mapping[str, str] | None
    delay: float | None
    ttl: float | None
    key: str | None
    priority: int | None
    unique: str | None
    unique_until: str | None
    replace: str | None
    replace_max: float | None
    batch: str | None
    batch_size: int | None
    batch_to: str | None


class SendOptions(Options, total=False):
    """The options of a message that is published outside of a transaction."""

    idempotency_key: str | None


def named(
    *,
    headers: Mapping[str, str] | None = None,
    delay: float | None = None,
    ttl: float | None = None,
    key: str | None = None,
    priority: int | None = None,
    unique: str | None = None,
    unique_until: str | None = None,
    replace: str | None = None,
    replace_max: float | None = None,
    batch: str | None = None,
    batch_size: int | None = None,
    batch_to: str | None = None,
    idempotency_key: str | None = None,
) -> dict[str, str]:
    """Return the headers of a SEND for these options; durations are in seconds.

    Raise TypeError if a value is not text, and ValueError if a number is out of range or the idempotency key is bad.
    """
    found: dict[str, str] = {}
    if delay:
        found["x-delta-t"] = str(milliseconds(delay, "delay"))
    if ttl is not None:
        found["expiration"] = str(milliseconds(ttl, "ttl"))
    if key is not None:
        found[KEY] = key
    if priority is not None:
        if not 0 <= priority <= _PRIORITY_MAX:
            raise ValueError(f"priority must be an integer from 0 to 9, not {priority!r}")
        found[PRIORITY] = str(int(priority))
    if unique is not None:
        found[UNIQUE] = unique
    if unique_until is not None:
        if unique is None or unique_until not in _UNTIL:
            raise ValueError(f"unique_until must be settled or delivered, with unique, not {unique_until!r}")
        found[UNIQUE_UNTIL] = unique_until
    if replace is not None:
        found[REPLACE] = replace
    if replace_max is not None:
        found[REPLACE_MAX] = str(milliseconds(replace_max, "replace_max"))
    if batch is not None:
        found[BATCH] = batch
    if batch_size is not None:
        found[BATCH_SIZE] = str(int(batch_size))
    if batch_to is not None:
        found[BATCH_TO] = batch_to
    if idempotency_key is not None:
        if not _IDEMPOTENCY_KEY.fullmatch(idempotency_key):
            raise ValueError(f"idempotency_key must be 1 to 255 visible ASCII characters, not {idempotency_key[:80]!r}")
        found[IDEMPOTENCY_KEY] = idempotency_key
    for name, value in (headers or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"the value of a header must be str; that of {name!r} is {value.__class__.__name__}")
        found[name.lower() if name.lower() in PASSED else PREFIX + name] = value
    return found


def lines(type: str | None, **options: Unpack[SendOptions]) -> str:
    """Return the header lines of a SEND for these options, each preceded by a LF. Raise what `named` raises."""
    found = named(**options)
    if type is not None:
        found["content-type"] = type
    return "".join([f"\n{escape(name)}:{escape(value)}" for name, value in found.items()])


def milliseconds(seconds: float, what: str) -> int:
    """Return a duration in ms. Raise ValueError with the name `what` if it is out of range."""
    if not 0 <= seconds <= DURATION_S_MAX:
        raise ValueError(f"{what} must be from 0 to {DURATION_S_MAX} seconds")
    return round(seconds * 1000)
