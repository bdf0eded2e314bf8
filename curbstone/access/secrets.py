"""Secrets that the server makes: tokens, sessions and tickets have the same form. Pure, except for randomness.

`cbs_{id}_{secret}`: the id is used in logs, the audit and revocations. Of the secret only a SHA-256 is kept. It has 256
random bits, so it needs no slow hash.
"""

from __future__ import annotations

import hmac
import secrets
import string
from hashlib import sha256
from typing import NamedTuple

TOKEN, SESSION, TICKET = "cbs", "cbt", "cbo"
"""The first part of a secret: of an API token, of a session, and of a ticket for one use."""

ID_CHARS = 10
_ALPHABET = string.digits + string.ascii_letters


class Secret(NamedTuple):
    """A secret, as its owner has it."""

    kind: str
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{self.kind}_{self.id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """The SHA-256, which is what the server keeps."""
        return sha256(self.secret.encode()).digest()

    def is_of(self, digest: bytes) -> bool:
        """Return whether a kept digest is this secret's, in constant time."""
        return hmac.compare_digest(self.digest, digest)


def new_secret(kind: str) -> Secret:
    """Return a new secret."""
    return Secret(kind, "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS)), secrets.token_urlsafe(32))


def parse_secret(text: str) -> Secret | None:
    """Return the secret in a text, or None if it is not one."""
    kind, _, rest = text.partition("_")
    identifier, _, secret = rest.partition("_")
    if kind not in (TOKEN, SESSION, TICKET) or len(identifier) != ID_CHARS or not 40 <= len(secret) <= 50:
        return None
    if not (identifier.isascii() and identifier.isalnum() and secret.isascii()):
        return None
    return Secret(kind, identifier, secret)
