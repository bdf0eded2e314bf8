"""The issuers of JWTs in the users file, and the interface of the verifier of their tokens.

`access.jwt_verifier` implements `Verifier`; it needs the extra `oidc`. The rights of a token's user follow from the
users file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from curbstone.access.rate_limit import NO_RATE, BadRate, Rate, parse_rate
from curbstone.access.rights import BadGrant, Grants
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import DEFAULT_PROJECT, queue_name

KEYS = ("url", "name", "audience", "home", "user_claim", "roles_claim", "jwks", "grants", "refused", "rate")
"""The keys of a table `[[issuers]]`."""
USER = re.compile(r"[A-Za-z0-9._@:-]{1,128}")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{1,4096}\.eyJ[A-Za-z0-9_-]{1,12288}\.[A-Za-z0-9_-]{1,2048}")


class BadIssuer(Exception):
    """A table breaks a rule; the text is one line."""


class Issuer(NamedTuple):
    """An issuer of tokens, and the most rights that its tokens may give."""

    url: str
    """The exact value of `iss` in its tokens."""
    name: str
    """The prefix of its users' names, followed by a colon."""
    audience: str
    """The value that `aud` must contain: the issuer's name for this server."""
    home: str
    """The home project of its users."""
    grants: tuple[str, ...]
    """The limit of what roles can give its users. If tokens name no roles, all users have these grants."""
    user_claim: str = "sub"
    roles_claim: str = ""
    """The claim with the role names, as a list or separated by spaces; "" for none."""
    jwks: str = ""
    """The location of its keys: an https URL or the path of a file; "" to use its discovery document."""
    refused: frozenset[str] = frozenset()
    """Refused users (without the issuer's prefix), and refused tokens as `jti:…`."""
    rate: Rate = NO_RATE
    """The publish rate of each of its users, unless a role gives one."""

    def verifies_like(self, other: Issuer) -> bool:
        """Return whether both verify tokens in the same way and with the same keys."""
        return self == other._replace(home=self.home, grants=self.grants, refused=self.refused, rate=self.rate)

    def ceiling(self, user: str) -> Grants:
        """Return the most rights that one of its users may have."""
        return Grants.parse(self.grants, user)


class Claims(NamedTuple):
    """The content of a valid token."""

    issuer: Issuer
    user: str
    """The user's name, with the issuer's prefix."""
    roles: tuple[str, ...]
    id: str
    """The token's `jti`; "" if it has none."""
    expires_ms: int
    """When it expires, by the wall clock."""


Verified = Callable[[Claims | CurbstoneError], None]


class Verifier(Protocol):
    """Verifies tokens. Called on the host's thread."""

    def set_issuers(self, issuers: Sequence[Issuer]) -> None:
        """Replace the list of issuers."""

    def known(self, token: str) -> Claims | None:
        """Return the claims of a token that was verified before; None if it has to be verified."""

    def verify(self, token: str, on_done: Verified) -> None:
        """Call back with the token's claims, NotLoggedIn or Busy, possibly before this returns."""


def is_jwt(secret: str) -> bool:
    """Return whether a secret has the form of a signed token, which no other credential has."""
    return secret.startswith("eyJ") and _TOKEN.fullmatch(secret) is not None


def issuer_of(table: Mapping[str, Any]) -> Issuer:
    """Return the issuer in a table of the users file; raise BadIssuer for the first broken rule."""
    unknown = next((key for key in table if key not in KEYS), None)
    if unknown is not None:
        raise BadIssuer(f"unknown key {unknown[:80]!r}; there are {', '.join(KEYS)}")
    texts = {key: table.get(key, "") for key in KEYS if key not in ("grants", "refused", "rate")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise BadIssuer("expected strings for all keys but grants, refused and rate")
    url, jwks, name = texts["url"], texts["jwks"], texts["name"]
    if not is_https(url):
        raise BadIssuer("url: expected an https URL, equal to iss in the tokens")
    if not _NAME.fullmatch(name):
        raise BadIssuer("name: 1 to 64 characters of A-Z a-z 0-9 . _ -; it is a prefix of its users' names")
    if not texts["audience"]:
        raise BadIssuer("audience is missing: the value of aud that stands for this server")
    if "://" in jwks and not is_https(jwks):
        raise BadIssuer("jwks: expected an https URL or the path of a file")
    grants, refused = table.get("grants", []), table.get("refused", [])
    for key, found in (("grants", grants), ("refused", refused)):
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise BadIssuer(f"{key}: expected a list of strings")
    try:
        Grants.parse(grants)
        home = queue_name("any", texts["home"] or DEFAULT_PROJECT).project
        rate = parse_rate(table["rate"]) if "rate" in table else NO_RATE
    except (BadGrant, BadRate, CurbstoneError) as error:
        raise BadIssuer(str(error)) from None
    user_claim = texts["user_claim"] or "sub"
    roles_claim, ceiling = texts["roles_claim"], tuple(grants)
    return Issuer(url, name, texts["audience"], home, ceiling, user_claim, roles_claim, jwks, frozenset(refused), rate)


def is_https(url: str) -> bool:
    """Return whether this is an https URL with a host and without a user."""
    return re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d{1,5})?(/[!-~]*)?", url) is not None
