"""The header `Idempotency-Key`: a publish that a client repeats is stored once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey

if TYPE_CHECKING:
    from curbstone.access.door import Access

HEADER = b"idempotency-key"

_KEY = re.compile(rb"[!-~]{1,255}")


def key_of(access: Access, fields: Iterable[tuple[bytes, bytes]], messages: Sequence[Message]) -> IdempotencyKey | None:
    """Return the key of a request with what it publishes, or None without the header; raise BadRequest.

    Each user has keys of its own.

    What counts as the same content is everything that is stored: bodies, headers, delays, ttls and groups.
    """
    for name, value in fields:
        if name == HEADER:
            if not _KEY.fullmatch(value):
                raise BadRequest("bad Idempotency-Key: 1 to 255 visible ASCII characters, no spaces")
            return access.key(value.decode(), b"".join(map(_content, messages)))
    return None


def _content(message: Message) -> bytes:
    numbers = f"{len(message.headers)} {len(message.body)} {message.delay_ms} {message.ttl_ms} {message.groups}\n"
    return numbers.encode() + message.headers + message.body
