"""The header `Idempotency-Key`: a publish that a client repeats is stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from curbstone.core.message import Message
from curbstone.core.values import IdempotencyKey

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker

HEADER = b"idempotency-key"
MEMBER = "Idempotency-Key"
"""The name of the key in the metadata of a message in JSON."""


def key_of(
    access: AuthorizedBroker, named: Mapping[bytes, bytes], messages: Sequence[Message]
) -> IdempotencyKey | None:
    """Return the idempotency key of a request that publishes `messages`, or None without the header; raise BadRequest.

    The keys of different users are independent.
    """
    key = named.get(HEADER)
    return None if key is None else access.key(key.decode("latin-1"), messages)
