"""The header `Idempotency-Key`: a publish that a client repeats is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from curbstone.core.errors import BadRequest
from curbstone.core.keys import IdempotencyKey
from curbstone.core.message import Message

HEADER = b"idempotency-key"
KEY_CHARS_MAX = 255


def key_of(fields: Iterable[tuple[bytes, bytes]], messages: Sequence[Message]) -> IdempotencyKey | None:
    """Return the key of a request with what it publishes, or None without the header; raise BadRequest.

    What counts as the same content is everything that is stored: bodies, headers, delays, ttls and groups.
    """
    for name, value in fields:
        if name == HEADER:
            key = value.decode("latin-1").strip()
            if not 0 < len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
                raise BadRequest(f"bad Idempotency-Key: 1 to {KEY_CHARS_MAX} printable ASCII characters")
            return IdempotencyKey(key, b"".join(map(_content, messages)))
    return None


def _content(message: Message) -> bytes:
    numbers = f"{len(message.headers)} {len(message.body)} {message.delay_ms} {message.ttl_ms} {message.groups}\n"
    return numbers.encode() + message.headers + message.body
