"""Secrets that the server makes: tokens, sessions and tickets all look alike. Pure but for the dice.

`cbs_{id}_{secret}`: the id is what logs, the audit and a revocation name; of the secret only a SHA-256 is kept. It is
256 random bits, so it needs no slow hash.
"""

from __future__ import annotations

import hmac
import secrets
import string
from hashlib import sha256
from typing import NamedTuple

TOKEN, SESSION, TICKET = "cbs", "cbt", "cbo"
"""What a secret begins with: an API token, a session that a login made, a ticket for one use."""

ID_CHARS = 10
_ALPHABET = string.digits + string.ascii_letters


class Secret(NamedTuple):
    """A secret as its owner has it."""

    kind: str
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{self.kind}_{self.id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """What is kept of it."""
        return sha256(self.secret.encode()).digest()

    def is_of(self, digest: bytes) -> bool:
        """Return whether a kept digest is this secret's, in constant time."""
        return hmac.compare_digest(self.digest, digest)


def new_secret(kind: str) -> Secret:
    """Return a fresh one."""
    return Secret(kind, "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS)), secrets.token_urlsafe(32))


def parse_secret(text: str) -> Secret | None:
    """Return the secret that a text is, or None."""
    kind, _, rest = text.partition("_")
    identifier, _, secret = rest.partition("_")
    if kind not in (TOKEN, SESSION, TICKET) or len(identifier) != ID_CHARS or not 40 <= len(secret) <= 50:
        return None
    if not (identifier.isascii() and identifier.isalnum() and secret.isascii()):
        return None
    return Secret(kind, identifier, secret)
