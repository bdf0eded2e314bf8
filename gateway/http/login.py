"""Logins of HTTP requests and WebSockets: reads credentials from the head, and gets an access for them.

A page of another origin can cause requests to which the browser adds credentials by itself. So Basic, a client
certificate and the console's cookie count only if the browser states that the page is ours. Bearer always counts,
because no browser sends it by itself.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import Scope

from curbstone.access.caller import CURRENT_CALLER, NO_CREDENTIALS, Caller, Credentials
from curbstone.access.errors import LOGIN_FAILED, LOGIN_REQUIRED, NotLoggedIn, TooMany
from curbstone.access.secrets import SESSION
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.answer_budget import account_of, wait_for_budget
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.fields import Fields
from curbstone.gateway.http.origin_policy import is_same_host
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import SECRET_BYTES_MAX
from curbstone.gateway.settings import OF_HEALTH

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.connections import Admitted

ACCESS = "access"
"""The key in a request's scope for its client's access."""

COOKIE_HEADER = b"x-curbstone-console"
COOKIE = "curbstone"
"""The name of the console's cookie: with TLS it has the prefix `__Host-`, without TLS the port as a suffix."""

SUBPROTOCOL = "bearer."
"""The prefix of a WebSocket subprotocol that carries a token in base64url, because browsers can't set headers there."""

REMEMBERED_MS = 10_000
"""How long a login on the same connection is valid without another check."""

_PUBLIC = {
    "/": "GET",
    "/healthz": "GET",
    "/readyz": "GET",
    "/console": "GET",
    "/favicon.ico": "GET",
    "/mq/auth": "POST",
}
_DOCUMENTS = ("/openapi.yaml", "/openapi.json", "/asyncapi.yaml", "/docs", "/docs/problems")
_OURS = (b"same-origin", b"none")
_MESSAGES = re.compile(r"/v2/[^/]+/queues/[^/]+/messages")


def access_of(scope: AnyScope) -> AuthorizedBroker:
    """Return the access of a request's client."""
    access: AuthorizedBroker = scope[ACCESS]
    return access


def caller_of(scope: AnyScope, protocol: str = "http") -> Caller:
    """Return where a request comes from."""
    return Caller.of(scope["peer"], protocol)


class _RememberedLogin(NamedTuple):
    """A good Bearer login, remembered so that it is not checked again for each request on the same connection.

    It is remembered only for a while, so that the use of a token is recorded. A session's login is not remembered,
    because each request must prolong the session.
    """

    authorization: bytes
    peer: object
    caller: Caller
    access: AuthorizedBroker
    generation: int
    until_ms: int

    def matches(self, authorization: bytes, peer: object, authenticator: Authenticator) -> bool:
        """Return whether a request presents the same login, and the login is still valid."""
        if authorization != self.authorization or peer is not self.peer or self.generation != authenticator.generation:
            return False
        identity = self.access.identity
        host = authenticator.connections.host
        if identity.expires_ms and host.wall_ms() >= identity.expires_ms:
            return False
        return not identity.end_reason and host.now_ms() < self.until_ms


class Logins:
    """Logs the clients of requests in."""

    def __init__(self, authenticator: Authenticator, *, documents_are_open: bool) -> None:
        self._authenticator = authenticator
        self.anonymous = authenticator.anonymous
        """The access of a client that has not logged in."""
        self._documents_are_open = documents_are_open

    async def admit(self, scope: Scope) -> None:
        """Put the client's access into the scope; raise NotLoggedIn, TooMany or Busy.

        A request waits here while its user's connections hold too much unread output.
        """
        await self._log_in(scope)
        if scope["method"] == "GET" and account_of(scope).is_held and scope["path"] not in OF_HEALTH:
            await wait_for_budget(scope)

    async def _log_in(self, scope: Scope) -> None:
        authenticator = self._authenticator
        if not authenticator.wants_login:
            scope[ACCESS] = authenticator.everyone
            return
        fields: Fields = scope["fields"]
        slot = scope["slot"]
        authorization = fields.value(b"authorization")
        last: _RememberedLogin | None = slot.login
        if last is not None and last.matches(authorization, scope["peer"], authenticator):
            scope[ACCESS] = last.access
            CURRENT_CALLER.set(last.caller)
            return
        slot.login = None
        caller = caller_of(scope)
        CURRENT_CALLER.set(caller)
        credentials = credentials_of(fields, is_tls=scope["scheme"] == "https", server=scope.get("server"))
        if credentials.is_empty and scope["path"].startswith("/mq/"):
            credentials = Credentials("", fields.value(b"x-auth-token").decode("latin-1"))
        if caller.certificate and not _is_our_page(fields):
            caller = caller._replace(certificate=())
        if credentials.is_empty and _is_stream_with_ticket(scope):
            scope[ACCESS] = authenticator.anonymous  # the stream will use the ticket
            return
        try:
            access = authenticator.enter(credentials, caller)
            if access is None:
                (access,) = await answer(lambda done: authenticator.admit(credentials, caller, done))
        except NotLoggedIn:
            if not self._is_public(scope) or not credentials.is_empty:
                raise
            access = authenticator.anonymous
        scope[ACCESS] = access
        if access is authenticator.anonymous:
            return
        if refusal := slot.logged_in(access.identity.user):
            raise TooMany(refusal)
        if authorization[:7].lower() == b"bearer " and not credentials.secret.startswith(SESSION):
            until_ms = authenticator.connections.host.now_ms() + REMEMBERED_MS
            slot.login = _RememberedLogin(
                authorization, scope["peer"], caller, access, authenticator.generation, until_ms
            )

    def _is_public(self, scope: Scope) -> bool:
        path, method = scope["path"], scope["method"]
        if path == "/v2/session":
            return bool(method == "POST")
        if path in _DOCUMENTS or path.startswith("/docs/"):
            return self._documents_are_open
        return _PUBLIC.get(path) in (method, "GET" if method == "HEAD" else "") or path.startswith("/console/")

    def admit_socket(self, fields: Fields, caller: Caller, is_tls: bool, is_own_login: bool, on_done: Admitted) -> None:
        """Call back with the access of a WebSocket's client or with an error, maybe at once.

        `is_own_login`: the protocol has a login of its own. Then a client without credentials gets anonymous access for
        now.
        """
        authenticator = self._authenticator
        if not authenticator.wants_login:
            on_done(authenticator.everyone)
            return
        try:
            credentials = credentials_of(fields, is_tls=is_tls, server=None)
        except CurbstoneError as error:
            on_done(error)
            return
        if caller.certificate and not _is_our_page(fields):
            caller = caller._replace(certificate=())
        if credentials.is_empty and is_own_login and not caller.certificate:
            on_done(authenticator.anonymous)
        else:
            authenticator.admit(credentials, caller, on_done)


def _is_stream_with_ticket(scope: Scope) -> bool:
    """Return whether this is the one kind of request that a ticket lets in; for all others a ticket is no login."""
    return (
        b"ticket=" in scope["query_string"]
        and scope["method"] == "GET"
        and _MESSAGES.fullmatch(scope["path"]) is not None
        and wants_stream(scope["fields"])
    )


def wants_stream(fields: Fields) -> bool:
    """Return whether a GET of messages asks for server-sent events."""
    return b"text/event-stream" in fields.value(b"accept").lower()


def credentials_of(fields: Fields, *, is_tls: bool, server: tuple[str, int] | None) -> Credentials:
    """Return a request's credentials; raise NotLoggedIn if they can't be read.

    `server` is the address it came to, which is part of the cookie's name; None if a cookie does not count.
    """
    authorization = fields.value(b"authorization")
    if authorization:
        return _authorization(authorization, fields)
    for offered in fields.value(b"sec-websocket-protocol").decode("latin-1").split(","):
        if offered.strip().startswith(SUBPROTOCOL):
            return Credentials("", _decoded(offered.strip()[len(SUBPROTOCOL) :].encode("latin-1"), urlsafe_b64decode))
    if server is not None and fields.value(COOKIE_HEADER) == b"1" and _is_our_page(fields, must_say=True):
        return Credentials("", _cookie(fields, cookie_name(is_tls, server[1])))
    return NO_CREDENTIALS


def cookie_name(is_tls: bool, port: int) -> str:
    """Return the name of the console's cookie on this listener."""
    return f"__Host-{COOKIE}" if is_tls else f"{COOKIE}-{port}"


def _authorization(value: bytes, fields: Fields) -> Credentials:
    scheme, _, rest = value.strip().partition(b" ")
    if len(rest) > SECRET_BYTES_MAX:
        raise NotLoggedIn(LOGIN_FAILED)
    if scheme.lower() == b"bearer":
        return Credentials("", rest.strip().decode("latin-1"))
    if scheme.lower() == b"basic":
        if not _is_our_page(fields):
            raise NotLoggedIn(LOGIN_REQUIRED)
        user, colon, secret = _decoded(rest.strip(), b64decode).partition(":")
        if colon:
            return Credentials(user, secret)
    raise NotLoggedIn(LOGIN_FAILED)


def _decoded(text: bytes, decode: Callable[[bytes], bytes]) -> str:
    try:
        return decode(text + b"=" * (-len(text) % 4)).decode()
    except (Base64Error, ValueError):
        raise NotLoggedIn(LOGIN_FAILED) from None


def _cookie(fields: Fields, name: str) -> str:
    for part in fields.value(b"cookie").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def _is_our_page(fields: Fields, *, must_say: bool = False) -> bool:
    """Return whether a request does not come from a page of another origin.

    `must_say`: it must come from a page that the browser says is ours.
    """
    origin, site = fields.value(b"origin"), fields.value(b"sec-fetch-site")
    if origin:
        return is_same_host(origin, fields.value(b"host"))
    if must_say:
        return site == b"same-origin"
    return not site or site in _OURS
