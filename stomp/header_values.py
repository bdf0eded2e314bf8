"""Header values that are numbers, names and flags. Garbage is an error, never a default."""

from __future__ import annotations

import re

from curbstone.core import headers as blocks
from curbstone.core.errors import BadRequest
from curbstone.core.names import group_name
from curbstone.stomp.codec import Head
from curbstone.stomp.errors import ProtocolError

DURATION_MS_MAX = 10 * 366 * 86_400_000
"""Ten years: what a delay or a time to live may be."""

TTL = ("expiration", "x-message-ttl", "expires")
"""How long a message lives: in ms (RabbitMQ), the same as an argument of its queue, or until when (ActiveMQ)."""

_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)


def required(head: Head, name: str) -> str:
    """Return the value of a header that the frame must have."""
    value = head.headers.get(name)
    if value is None:
        raise ProtocolError(f"missing mandatory header [{name}] on frame [{head.command}]")
    return value


def as_written(head: Head, name: str) -> str:
    """Return the value of a header the frame has in the encoding it came in."""
    return head.lines[name].decode().partition(":")[2]


def number(head: Head, name: str, least: int, most: int) -> int | None:
    """Return the header as a whole number, None without it; raise on anything else, also outside the bounds."""
    text = head.headers.get(name)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise ProtocolError(f"{name} must be a whole number from {least} to {most}", head.lines[name])
    return int(text)


def ordering_key(head: Head, name: str, alias: str) -> bytes:
    """Return the line to store beside the others where the ordering key has its other name; raise on a bad key."""
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
    """Return the delay that `x-next-t` (when, in ms since the epoch) or else `x-delta-t` (ms) asks for."""
    when = number(head, "x-next-t", 0, 10**15 - 1)
    after = number(head, "x-delta-t", 0, DURATION_MS_MAX)
    if when is None:
        return after
    if when - wall_ms > DURATION_MS_MAX:
        raise ProtocolError(f"x-next-t is more than {DURATION_MS_MAX} ms ahead", head.lines["x-next-t"])
    return max(0, when - wall_ms)


def ttl_ms(head: Head, wall_ms: int) -> int | None:
    """Return how long a message lives; None or 0 for as long as it takes. The first of `TTL` that is there counts."""
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
    """Return the group names of a comma-separated header; none without it."""
    text = head.headers.get(name)
    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(group_name(part.strip()) for part in text.split(",")))
    except BadRequest as error:
        raise ProtocolError(str(error), head.lines[name]) from None


def flag(head: Head, name: str) -> bool | None:
    """Return the header as true or false, None without it."""
    text = head.headers.get(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise ProtocolError(f"{name} must be true or false", head.lines[name])
    return text.lower() == "true"
