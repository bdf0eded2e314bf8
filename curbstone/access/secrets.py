"""The secrets of API tokens, sessions and tickets, which the server generates.

They have the form `cbs_{id}_{secret}`. The id is used in logs and for revocations. The server keeps only the SHA-256 of
the secret, which has 256 random bits and so needs no slow hash.
"""

from __future__ import annotations

import hmac
import secrets
import string
from hashlib import sha256
from typing import NamedTuple

TOKEN, SESSION, TICKET = "cbs", "cbt", "cbo"
"""The prefix of API tokens, of sessions, and of tickets, which can be used once."""

ID_CHARS = 10
_ALPHABET = string.digits + string.ascii_letters


class Secret(NamedTuple):
    """A secret in plain text."""

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
        """Return, in constant time, whether a stored digest is that of this secret."""
        return hmac.compare_digest(self.digest, digest)


def new_secret(kind: str) -> Secret:
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
