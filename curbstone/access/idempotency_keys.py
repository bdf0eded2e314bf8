"""Idempotency keys: each belongs to one owner and identifies the content of its first publish."""

from __future__ import annotations

import re
from collections.abc import Sequence

from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey

_KEY = re.compile(r"[!-~]{1,255}")


def key_of(owner: str, text: str, messages: Sequence[Message]) -> IdempotencyKey:
    """Return the idempotency key of an owner, "" for a server without users; raise BadRequest."""
    if not _KEY.fullmatch(text):
        raise BadRequest("bad idempotency key: 1 to 255 visible ASCII characters, no spaces")
    return IdempotencyKey(f"{owner}\n{text}" if owner else text, b"".join(map(_content, messages)))


def _content(message: Message) -> bytes:
    numbers = f"{len(message.headers)} {len(message.body)} {message.delay_ms} {message.ttl_ms} {message.groups}\n"
    return numbers.encode() + message.headers + message.body
