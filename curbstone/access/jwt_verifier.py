"""Verifies JWTs of listed issuers. Needs the extra `oidc`.

A token does not decide how it is verified: its issuer must be in the users file, and the algorithm is the one of the
issuer's key. Only RS256, ES256 and EdDSA are allowed. Valid tokens are cached until they expire, by their hash.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jwt

from curbstone.access.errors import LOGIN_FAILED, Busy, NotLoggedIn
from curbstone.access.issuers import USER, Claims, Issuer, Verified, is_jwt
from curbstone.access.jwks import Fetch, IssuerKeys
from curbstone.core.host import Host

LEEWAY_S = 30
LIFETIME_S_MAX = 24 * 60 * 60
"""The longest time between the issue of a token and its expiry."""
KNOWN_MAX = 10_000
ROLES_MAX = 100
ID_CHARS_MAX = 1024
"""The longest `jti`. It is kept whole, because `refused` lists whole ids."""

_ALGORITHMS = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
"""The algorithm for each type and curve of a key."""
_REQUIRED = ["iss", "aud", "exp", "sub"]

log = logging.getLogger("curbstone.access")


class JwtVerifier:
    """Implements `issuers.Verifier`; called on the host's thread."""

    def __init__(self, issuers: Sequence[Issuer], host: Host, fetch: Fetch | None = None) -> None:
        """`fetch` is that of `IssuerKeys`."""
        self._host = host
        self._fetch = fetch
        self._issuers: dict[str, Issuer] = {}
        self._keys: dict[str, IssuerKeys] = {}
        self._known: dict[bytes, Claims] = {}
        self.set_issuers(issuers)

    def set_issuers(self, issuers: Sequence[Issuer]) -> None:
        """See `Verifier`. Keeps the keys of issuers whose keys have the same location as before."""
        before = {issuer.url: issuer.jwks for issuer in self._issuers.values()}
        self._issuers = {issuer.url: issuer for issuer in issuers}
        self._keys = {
            each.url: self._keys[each.url]
            if before.get(each.url) == each.jwks
            else IssuerKeys(each, self._host, self._fetch)
            for each in issuers
        }
        self._known.clear()

    def known(self, token: str) -> Claims | None:
        mark = _mark(token)
        claims = self._known.get(mark)
        if claims is not None and claims.expires_ms + LEEWAY_S * 1000 <= self._host.wall_ms():
            del self._known[mark]
            return None
        return claims

    def verify(self, token: str, on_done: Verified) -> None:
        claims = self.known(token)
        if claims is not None:
            on_done(claims)
            return
        try:
            issuer, kid = self._issuer_and_key_id(token)
        except (jwt.PyJWTError, RecursionError) as error:
            on_done(_refusal(error))
            return
        keys = self._keys[issuer.url]

        def check() -> None:
            if self._issuers.get(issuer.url) != issuer:  # the issuers were reloaded meanwhile
                self.verify(token, on_done)
                return
            key = keys.find(kid)
            if key is not None:
                on_done(self._checked(token, issuer, key))
            elif keys.is_unreachable:  # it may be a new key
                on_done(Busy("the issuer of this login can't be reached; try again"))
            else:
                on_done(_refusal("no such key"))

        if keys.find(kid) is not None:
            check()
        elif keys.is_busy:
            on_done(Busy("too many logins are waiting for the keys of their issuer; try again"))
        elif not keys.fetch(check):
            check()

    def _issuer_and_key_id(self, token: str) -> tuple[Issuer, str]:
        """Return the issuer and key id that a token names. Neither is verified yet."""
        if not is_jwt(token):
            raise jwt.DecodeError("not a JWT")
        decoded = jwt.decode_complete(token, options={"verify_signature": False})
        issuer = self._issuers.get(str(decoded["payload"].get("iss")))
        if issuer is None:
            raise jwt.InvalidIssuerError("its issuer is not listed")
        return issuer, str(decoded["header"].get("kid", ""))

    def _checked(self, token: str, issuer: Issuer, key: Mapping[str, Any]) -> Claims | NotLoggedIn:
        algorithm = _ALGORITHMS.get((str(key.get("kty")), str(key.get("crv", ""))))
        if algorithm is None or key.get("alg", algorithm) != algorithm:
            return _refusal("its key is not for RS256, ES256 or EdDSA")
        try:
            decoded = jwt.decode(
                token,
                jwt.PyJWK(dict(key), algorithm),
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.url,
                options={"require": _REQUIRED, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
            claims = _claims(decoded, issuer, self._host.wall_ms())
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            return _refusal(error)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[_mark(token)] = claims
        return claims


def _claims(decoded: Mapping[str, Any], issuer: Issuer, wall_ms: int) -> Claims:
    """Return the claims of a token with a valid signature; raise ValueError. Uses the host's clock."""
    now_s = wall_ms / 1000
    expires_s = _seconds(decoded, "exp", 0)
    began_s = max(_seconds(decoded, name, 0) for name in ("iat", "nbf"))
    if expires_s + LEEWAY_S <= now_s:
        raise ValueError("it has expired")
    if began_s > now_s + LEEWAY_S:
        raise ValueError("it is not valid yet")
    if expires_s - (began_s or now_s) > LIFETIME_S_MAX:
        raise ValueError(f"it is valid for more than {LIFETIME_S_MAX // 3600} h")
    name = decoded.get(issuer.user_claim)
    user = f"{issuer.name}:{name}"
    if not isinstance(name, str) or not name or not USER.fullmatch(user):
        raise ValueError(f"{issuer.user_claim} is not a valid user name")
    roles = decoded.get(issuer.roles_claim, ()) if issuer.roles_claim else ()
    listed = roles.split() if isinstance(roles, str) else roles
    if not isinstance(listed, (list, tuple)) or len(listed) > ROLES_MAX:
        raise ValueError(f"{issuer.roles_claim} is not a list of at most {ROLES_MAX} roles")
    known = tuple(role for role in listed if isinstance(role, str))
    identifier = decoded.get("jti", "")
    if not isinstance(identifier, (str, int)) or len(str(identifier)) > ID_CHARS_MAX:
        raise ValueError(f"jti is not a string of at most {ID_CHARS_MAX} characters")
    return Claims(issuer, user, known, str(identifier), round(expires_s * 1000))


def _seconds(decoded: Mapping[str, Any], name: str, default: float) -> float:
    value = decoded.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{name} is not a time")
    return value


def _refusal(reason: object) -> NotLoggedIn:
    """Return the error, which is the same for all reasons, and log the reason."""
    log.debug("refused a JWT: %s", reason)
    return NotLoggedIn(LOGIN_FAILED)


def _mark(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
