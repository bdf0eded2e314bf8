"""Issuers of JWTs that the users file lists: what each may say, and what verifies their tokens. Knows no cryptography.

`access.jwt` has the `Verifier` that needs the extra `oidc`. What a token says is `Claims`; what its user may do follows
from the users file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from curbstone.access.rates import NO_RATE, BadRate, Rate, parse_rate
from curbstone.access.rights import BadGrant, Grants
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import DEFAULT_PROJECT, queue_name

KEYS = ("url", "name", "audience", "home", "user_claim", "roles_claim", "jwks", "grants", "refused", "rate")
"""Of a table `[[issuers]]`."""
USER = re.compile(r"[A-Za-z0-9._@:-]{1,128}")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{1,4096}\.eyJ[A-Za-z0-9_-]{1,12288}\.[A-Za-z0-9_-]{1,2048}")


class BadIssuer(Exception):
    """A table breaks a rule; the text is one line."""


class Issuer(NamedTuple):
    """Who signs tokens, and the most that those may give."""

    url: str
    """What `iss` says, letter by letter."""
    name: str
    """What stands before the names of its users, with a colon."""
    audience: str
    """What `aud` must name: this server, as the issuer calls it."""
    home: str
    """The project of its users' names that have none."""
    grants: tuple[str, ...]
    """The ceiling of what roles give its users; where tokens name no roles, what all have."""
    user_claim: str = "sub"
    roles_claim: str = ""
    """The claim with the names of roles, as a list or with spaces between; "" for none."""
    jwks: str = ""
    """Where its keys are: an https URL or the path of a file; "" for where its discovery document says."""
    refused: frozenset[str] = frozenset()
    """Users, without the issuer's name, and `jti:…` of tokens that count no more."""
    rate: Rate = NO_RATE
    """What each of its users may publish, unless a role says it."""

    def reads_as(self, other: Issuer) -> bool:
        """Return whether it takes from a token what another did, by the same keys."""
        return self == other._replace(home=self.home, grants=self.grants, refused=self.refused, rate=self.rate)

    def ceiling(self, user: str) -> Grants:
        """Return the most that one of its users may have."""
        return Grants.parse(self.grants, user)


class Claims(NamedTuple):
    """What a good token says."""

    issuer: Issuer
    user: str
    """With the issuer's name before it."""
    roles: tuple[str, ...]
    id: str
    """Its `jti`, "" for none."""
    expires_ms: int
    """By the wall clock."""


Verified = Callable[[Claims | CurbstoneError], None]


class Verifier(Protocol):
    """Verifies tokens. Called on the host's thread."""

    def take(self, issuers: Sequence[Issuer]) -> None:
        """These are the issuers from now on."""

    def known(self, token: str) -> Claims | None:
        """Return what a token says that was found good before; None where it has to be verified."""

    def verify(self, token: str, on_done: Verified) -> None:
        """Call back with what a token says, NotLoggedIn where it is no good, or Busy; maybe before this returns."""


def is_jwt(secret: str) -> bool:
    """Return whether a secret has the form of a signed token; every other credential has another."""
    return secret.startswith("eyJ") and _TOKEN.fullmatch(secret) is not None


def issuer_of(table: Mapping[str, Any]) -> Issuer:
    """Return the issuer that a table of the users file describes; raise BadIssuer for the first rule it breaks."""
    unknown = next((key for key in table if key not in KEYS), None)
    if unknown is not None:
        raise BadIssuer(f"unknown key {unknown[:80]!r}; there are {', '.join(KEYS)}")
    texts = {key: table.get(key, "") for key in KEYS if key not in ("grants", "refused", "rate")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise BadIssuer("all but grants, refused and rate are texts")
    url, jwks, name = texts["url"], texts["jwks"], texts["name"]
    if not is_https(url):
        raise BadIssuer("url is an https URL, as the tokens have it in iss")
    if not _NAME.fullmatch(name):
        raise BadIssuer("name has 1 to 64 of A-Z a-z 0-9 . _ -; it stands before the names of its users")
    if not texts["audience"]:
        raise BadIssuer("audience is missing: what aud of its tokens names this server")
    if "://" in jwks and not is_https(jwks):
        raise BadIssuer("jwks is an https URL, or the path of a file")
    grants, refused = table.get("grants", []), table.get("refused", [])
    for key, found in (("grants", grants), ("refused", refused)):
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise BadIssuer(f"{key} is a list of texts")
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
    """Return whether this is an https URL of a plain form: a host, and no user in it."""
    return re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d{1,5})?(/[!-~]*)?", url) is not None
