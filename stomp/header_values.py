"""Reads header values that are numbers, names or flags. A malformed value is an error, never the default."""

from __future__ import annotations

import re

from curbstone.core import batches
from curbstone.core import headers as blocks
from curbstone.core.errors import BadRequest
from curbstone.core.filters import filter_of
from curbstone.core.names import group_name
from curbstone.core.orders import BATCHED, NAMED, NAMES, PRIORITY, check_names, parse_priority
from curbstone.stomp.codec import Head
from curbstone.stomp.errors import ProtocolError

DURATION_MS_MAX = 10 * 366 * 86_400_000
"""Ten years: the longest delay or time to live."""

TTL = ("expiration", "x-message-ttl", "expires")
"""The headers for a message's time to live: in ms (RabbitMQ's two names), or as a point in time (ActiveMQ)."""

_WITH_FLAGS = NAMES | batches.HEADERS
_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)


def required(head: Head, name: str) -> str:
    """Return the value of a header that the frame must have."""
    value = head.headers.get(name)
    if value is None:
        raise ProtocolError(f"missing mandatory header [{name}] on frame [{head.command}]")
    return value


def as_written(head: Head, name: str) -> str:
    """Return the value of a header that the frame has, as encoded by the client."""
    return head.lines[name].decode().partition(":")[2]


def selector(head: Head) -> str:
    """Return the filter that a SUBSCRIBE has, or an empty text; raise ProtocolError with the place of an error."""
    text = head.headers.get("selector", "")
    try:
        return filter_of(text).text if text else ""
    except BadRequest as error:
        raise ProtocolError(str(error), head.lines["selector"]) from None


def number(head: Head, name: str, least: int, most: int) -> int | None:
    """Return the header as a whole number, or None without it; raise ProtocolError for anything else."""
    text = head.headers.get(name)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise ProtocolError(f"{name} must be a whole number from {least} to {most}", head.lines[name])
    return int(text)


def priority(head: Head) -> int:
    """Return the level of the priority that a SEND asks for, 0 for the default; raise ProtocolError."""
    text = head.headers.get(PRIORITY)
    if text is None:
        return 0
    try:
        return parse_priority(text)
    except ValueError as error:
        raise ProtocolError(f"bad {PRIORITY}: {error}", head.lines[PRIORITY]) from None


def flags(head: Head) -> int:
    """Return `NAMED` if a SEND asks for a name, plus `BATCHED` if it is of a batch.

    Raise ProtocolError for a name or a batch that no message can have.
    """
    found = 0
    if _WITH_FLAGS.isdisjoint(head.headers):
        return found
    for names, check, flag, what in (
        (NAMES, check_names, NAMED, "name"),
        (batches.HEADERS, batches.check_batch, BATCHED, "batch"),
    ):
        if names.isdisjoint(head.headers):
            continue
        try:
            check(head.headers)
        except (ValueError, BadRequest) as error:
            line = next(head.lines[name] for name in names if name in head.lines)
            raise ProtocolError(f"bad {what}: {error}", line) from None
        found |= flag
    return found


def ordering_key(head: Head, name: str, alias: str) -> bytes:
    """Check an ordering key. Return the line to store in addition if the frame has the key only under its alias.

    Raise ProtocolError if the key is bad.
    """
    for each in (name, alias):
        if (key := head.headers.get(each)) is not None:
            try:
                blocks.check_key(key)
            except ValueError as error:
                raise ProtocolError(f"bad {each}: {error}", head.lines[each]) from None
    if alias not in head.headers or name in head.headers:
        return b""
    return blocks.encode([(name, head.headers[alias])])


def delay_ms(head: Head, wall_ms: int) -> int | None:
    """Return the delay in ms that `x-next-t` (a time, in ms since the epoch) or else `x-delta-t` (in ms) asks for."""
    when = number(head, "x-next-t", 0, 10**15 - 1)
    after = number(head, "x-delta-t", 0, DURATION_MS_MAX)
    if when is None:
        return after
    if when - wall_ms > DURATION_MS_MAX:
        raise ProtocolError(f"x-next-t is more than {DURATION_MS_MAX} ms ahead", head.lines["x-next-t"])
    return max(0, when - wall_ms)


def ttl_ms(head: Head, wall_ms: int) -> int | None:
    """Return the time to live in ms; None or 0 for no end. The first header of `TTL` that the frame has counts."""
    for name in TTL[:-1]:
        after = number(head, name, 0, DURATION_MS_MAX)
        if after is not None:
            return after
    when = number(head, "expires", 0, 10**15 - 1)
    if not when:
        return None
    if when - wall_ms > DURATION_MS_MAX:
        raise ProtocolError(f"expires is more than {DURATION_MS_MAX} ms ahead", head.lines["expires"])
    return max(1, when - wall_ms)


def groups(head: Head, name: str) -> tuple[str, ...]:
    """Return the group names in a comma-separated header; an empty tuple without it."""
    text = head.headers.get(name)
    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(group_name(part.strip()) for part in text.split(",")))
    except BadRequest as error:
        raise ProtocolError(str(error), head.lines[name]) from None


def flag(head: Head, name: str) -> bool | None:
    """Return the header as True or False, or None without it."""
    text = head.headers.get(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise ProtocolError(f"{name} must be true or false", head.lines[name])
    return text.lower() == "true"
