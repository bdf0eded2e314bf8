"""The header `Idempotency-Key`: a publish that a client repeats is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey

if TYPE_CHECKING:
    from curbstone.access.door import Access

HEADER = b"idempotency-key"
MEMBER = "Idempotency-Key"
"""What it is called in the metadata of a message in JSON."""


def key_of(access: Access, fields: Iterable[tuple[bytes, bytes]], messages: Sequence[Message]) -> IdempotencyKey | None:
    """Return the key of a request with what it publishes, or None without the header; raise BadRequest.

    Each user has keys of its own.
    """
    for name, value in fields:
        if name == HEADER:
            return access.key(value.decode("latin-1"), messages)
    return None
