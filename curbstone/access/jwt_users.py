"""Users who log in with the JWT of an issuer. The users file does not list them, but it defines their rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from curbstone.access.errors import LOGIN_FAILED, NotLoggedIn
from curbstone.access.issuers import Claims
from curbstone.access.rate_limit import NO_RATE, Rate, most
from curbstone.access.rights import Grants
from curbstone.access.users import User, Users, UsersError

if TYPE_CHECKING:
    from curbstone.access.issuers import Issuer, Verified, Verifier
    from curbstone.core.host import Host


def user_of(claims: Claims, users: Users) -> User | None:
    """Return the user of a token; None if the users file no longer lists its issuer like that, or refuses the user."""
    issuer = next((each for each in users.issuers if each.url == claims.issuer.url), None)
    if issuer is None or not issuer.verifies_like(claims.issuer):
        return None
    if claims.user.partition(":")[2] in issuer.refused or (claims.id and f"jti:{claims.id}" in issuer.refused):
        return None
    grants = roles_of(issuer, claims.user, claims.roles, users)
    rate = rate_of(issuer, claims.roles, users)
    return User(claims.user, issuer.home, grants, (), (), (), issuer.ceiling(claims.user), rate)


def roles_of(issuer: Issuer, user: str, roles: tuple[str, ...], users: Users) -> Grants:
    """Return the grants of a token's roles, or the issuer's own grants if its tokens name no roles."""
    if not issuer.roles_claim:
        return issuer.ceiling(user)
    return Grants.parse([text for role in roles if role in users.roles for text in users.roles[role].grants], user)


def rate_of(issuer: Issuer, roles: tuple[str, ...], users: Users) -> Rate:
    """Return the rate of an issuer's user: the largest of its token's roles, or the issuer's own rate."""
    of_roles = most(users.roles[role].rate for role in roles if issuer.roles_claim and role in users.roles)
    return issuer.rate if of_roles == NO_RATE else of_roles


def check_library(users: Users) -> None:
    """Raise UsersError if issuers are listed but the library for their tokens is missing."""
    if users.issuers:
        try:
            import curbstone.access.jwt_verifier  # noqa: F401 - PyJWT may be missing
        except ImportError:
            raise UsersError("[[issuers]] needs the extra oidc: pip install 'curbstone[oidc]'") from None


def verifier_for(users: Users, host: Host) -> Verifier:
    """Return the verifier for the listed issuers' tokens. `check_library` must have been called."""
    if not users.issuers:
        return NoVerifier()
    from curbstone.access.jwt_verifier import JwtVerifier

    return JwtVerifier(users.issuers, host)


class NoVerifier:
    """The verifier if no issuers are listed."""

    def set_issuers(self, issuers: Sequence[Issuer]) -> None:
        """Do nothing: there are no issuers."""

    def known(self, _token: str) -> Claims | None:
        return None

    def verify(self, _token: str, on_done: Verified) -> None:
        on_done(NotLoggedIn(LOGIN_FAILED))
