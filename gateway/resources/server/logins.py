"""Sessions, tokens, tickets, connections, the audit and reloading over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from curbstone.access.authenticator import Authenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Credentials
from curbstone.access.connections import OpenConnection
from curbstone.access.errors import LOGIN_REQUIRED, NotLoggedIn
from curbstone.access.reloading import Reloads
from curbstone.access.rights import ON_SERVER, Right
from curbstone.access.sessions import PURPOSES, TICKET_MS, WITHOUT_QUEUE
from curbstone.access.tokens import DAY_MS, Token
from curbstone.core.errors import BadRequest
from curbstone.core.host import Host
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.gateway.formats.parameters import query_of, seconds_ms
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of, caller_of, cookie_name
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.http.typed_body import Body, OptionalText, Seconds, Text, read_typed, rule
from curbstone.gateway.limits import LOGIN_BYTES_MAX
from curbstone.net.peer import is_loopback

if TYPE_CHECKING:  # loaded only if there are users
    from curbstone.access.user_authenticator import UserAuthenticator


class TicketRequest(Body):
    """The body of a request for a ticket."""

    what = "a ticket"

    way: Annotated[str, rule(", ".join(PURPOSES), pattern=rf"\A({'|'.join(PURPOSES)})\Z")]
    queue: OptionalText = None


class TokenRequest(Body):
    """The body of a request for a token: its user, its grants, and its lifetime."""

    what = "a token"

    user: OptionalText = None
    grants: Annotated[list[str] | None, rule("a list of strings")] = None
    seconds: Seconds = None
    label: Text = ""


class Logins:
    """The handlers of `/v2/session`, `/v2/tickets`, `/v2/tokens`, `/v2/connections`, `/v2/audit` and `/v2/reload`."""

    def __init__(self, authenticator: Authenticator, host: Host, reloads: Reloads) -> None:
        self._authenticator = authenticator
        self._host = host
        self._reloads = reloads

    # --- sessions and tickets

    async def open(self, request: Request) -> Response:
        """POST /v2/session: turn a login into a session, whose secret is in a cookie that no script can read."""
        access = access_of(request)
        if not access.identity.user:
            raise NotLoggedIn(LOGIN_REQUIRED)
        is_tls, port = request["scheme"] == "https", request["server"][1]
        if not is_tls and not is_loopback(request["server"][0]):
            raise Problem(403, "a session for a browser needs TLS")
        secret, access = self._users().open_session(access, caller_of(request))
        return JsonResponse(self._who(access), 201, {"set-cookie": _cookie(is_tls, port, str(secret)), **FRESH})

    async def show(self, request: Request) -> Response:
        """GET /v2/session: the caller's user and rights."""
        return JsonResponse(self._who(access_of(request)), 200, FRESH)

    async def close(self, request: Request) -> Response:
        """DELETE /v2/session: end the session. A login that is not a session gets the same reply."""
        if self._authenticator.wants_login:
            self._users().close_session(access_of(request))
        cookie = _cookie(request["scheme"] == "https", request["server"][1], "")
        return Response(status_code=204, headers={"set-cookie": f"{cookie}; Max-Age=0"})

    async def open_mq(self, request: Request) -> Response:
        """POST /mq/auth: open a session for a client of SoftLayer's MQ."""
        credentials = Credentials(request.headers.get("x-auth-user", ""), request.headers.get("x-auth-key", ""))
        authenticator, caller = self._users(), caller_of(request)._replace(protocol="mq")
        (access,) = await answer(lambda done: authenticator.admit(credentials, caller, done))
        secret, _ = authenticator.open_session(access, caller)
        return Response(headers={"x-auth-token": str(secret), **FRESH})

    async def make_ticket(self, request: Request) -> Response:
        """POST /v2/tickets: create a ticket, which in a URL is a login for one request to publish or consume."""
        body = await read_typed(request, request.receive, LOGIN_BYTES_MAX, TicketRequest)
        access = access_of(request)
        _check_login(access)
        name: QueueName | None = None
        if body.way in WITHOUT_QUEUE:
            if body.queue is not None:
                raise BadRequest(f"a ticket for {body.way} must not name a queue")
        elif body.queue is None:
            raise BadRequest(f"queue is missing: a ticket for {body.way} must name one")
        else:
            name = parse_queue_name(body.queue, access.home)
            access.check(Right.SEND if body.way == "publish" else Right.RECEIVE, name)
            if access.may_be_new(name):  # the client of the ticket can't wait for it
                await answer(access.catch_up)
        secret = self._users().make_ticket(access, body.way, name)
        return JsonResponse({"ticket": str(secret), "expires": self._host.wall_ms() + TICKET_MS}, 201, FRESH)

    # --- tokens

    async def tokens(self, request: Request) -> Response:
        """GET /v2/tokens: the tokens that the caller may revoke; all, with the right `admin`. Never their secrets."""
        access = access_of(request)
        _check_login(access)
        authenticator = self._users()
        found = [_token(token) for token in authenticator.tokens.listed() if authenticator.sees_token(access, token)]
        return JsonResponse({"tokens": found}, 200, FRESH)

    async def make_token(self, request: Request) -> Response:
        """POST /v2/tokens: create a token. Only this reply contains its secret."""
        body = await read_typed(request, request.receive, LOGIN_BYTES_MAX, TokenRequest)
        access = access_of(request)
        _check_login(access)
        user = access.identity.user if body.user is None else body.user
        lasts_ms = seconds_ms("seconds", body.seconds or 0)
        expires_ms = self._host.wall_ms() + lasts_ms if lasts_ms else 0
        authenticator = self._users()
        made: list[tuple[str, Token]] = []

        def start(done: Any) -> None:
            secret, token = authenticator.make_token(
                access, user=user, grants=body.grants, expires_ms=expires_ms, label=body.label, on_done=done
            )
            made.append((str(secret), token))

        await answer(start)
        [(secret, token)] = made
        return JsonResponse({"token": secret, **_token(token)}, 201, FRESH)

    async def revoke_token(self, request: Request) -> Response:
        """DELETE /v2/tokens/{id}: revoke a token and all tokens created with it; answered when this is on disk."""
        access = access_of(request)
        _check_login(access)
        identifier = request.path_params["id"]
        await answer(lambda done: self._users().revoke_token(access, identifier, done))
        return Response(status_code=204)

    async def revoke_tokens_of(self, request: Request) -> Response:
        """DELETE /v2/tokens?user=: revoke a user's tokens, as far as the caller may; answered when this is on disk."""
        access = access_of(request)
        _check_login(access)
        user = query_of(request).get("user", "")
        if not user:
            raise BadRequest("the user is missing: add ?user=NAME")
        revoked: list[int] = []
        await answer(lambda done: revoked.append(self._users().revoke_tokens_of(access, user, done)))
        return JsonResponse({"revoked": revoked[0]}, 200, FRESH)

    # --- the server

    async def connections(self, request: Request) -> Response:
        """GET /v2/connections: the open connections."""
        access_of(request).check_server(Right.ADMIN)
        found = [_open_connection(each) for each in self._authenticator.connections.listed()]
        return JsonResponse({"connections": found}, 200, FRESH)

    async def end_connection(self, request: Request) -> Response:
        """DELETE /v2/connections/{id}: end a connection; the same reply if there is none."""
        identifier = request.path_params["id"]
        access_of(request).administer("end connection", identifier[:20])
        self._authenticator.connections.end(identifier)
        return Response(status_code=204)

    async def audit(self, request: Request) -> Response:
        """GET /v2/audit: the latest entries of the audit, the newest first."""
        access_of(request).check_server(Right.ADMIN)
        return JsonResponse({"audit": list(reversed(self._users().audit.recent))}, 200, FRESH)

    async def reload(self, request: Request) -> Response:
        """POST /v2/reload: reload users and certificates. A bad file changes nothing; the reply gives the reason."""
        access_of(request).administer("reload")
        if not self._reloads:
            raise Problem(409, "this server has neither users nor a certificate to reload")
        await answer(self._reloads.reload)
        return Response(status_code=204)

    def _who(self, access: AuthorizedBroker) -> dict[str, object]:
        identity = access.identity
        who: dict[str, object] = {"user": identity.user, "home": identity.home, "credential": identity.credential}
        if identity.expires_ms:
            who["expires"] = identity.expires_ms
        rights = [right.word for right in Right if right & ON_SERVER & identity.on_server()]
        return {**who, "server": rights, "login": self._authenticator.wants_login}

    def _users(self) -> UserAuthenticator:
        if not self._authenticator.wants_login:
            raise Problem(409, "this server has no users, so there are no logins; see serve --users")
        return cast("UserAuthenticator", self._authenticator)  # only a UserAuthenticator wants logins


def login_routes(authenticator: Authenticator, host: Host, reloads: Reloads) -> list[Route]:
    """Return the routes of logins."""
    logins = Logins(authenticator, host, reloads)
    return [
        Route("/v2/session", Resource(POST=logins.open, GET=logins.show, DELETE=logins.close)),
        Route("/mq/auth", Resource(POST=logins.open_mq)),
        Route("/v2/tickets", Resource(POST=logins.make_ticket)),
        Route("/v2/tokens", Resource(GET=logins.tokens, POST=logins.make_token, DELETE=logins.revoke_tokens_of)),
        Route("/v2/tokens/{id}", Resource(DELETE=logins.revoke_token)),
        Route("/v2/connections", Resource(GET=logins.connections)),
        Route("/v2/connections/{id}", Resource(DELETE=logins.end_connection)),
        Route("/v2/audit", Resource(GET=logins.audit)),
        Route("/v2/reload", Resource(POST=logins.reload)),
    ]


def _cookie(is_tls: bool, port: int, secret: str) -> str:
    """Return the Set-Cookie value of the console's cookie.

    Browsers drop a cookie with the prefix `__Host-` if it lacks one of these attributes.
    """
    secure = "; Secure" if is_tls else ""
    return f"{cookie_name(is_tls, port)}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _check_login(access: AuthorizedBroker) -> None:
    if access.identity.end_reason or not access.identity.user:
        raise NotLoggedIn(access.identity.end_reason or LOGIN_REQUIRED)


def _token(token: Token) -> dict[str, object]:
    members: dict[str, object] = {"id": token.id, "user": token.user, "label": token.label, "created": token.created_ms}
    if token.grants is not None:
        members["grants"] = list(token.grants)
    if token.expires_ms:
        members["expires"] = token.expires_ms
    if token.used_day:
        members["used"] = token.used_day * DAY_MS
    return members


def _open_connection(open_connection: OpenConnection) -> dict[str, object]:
    identity, caller = open_connection.access.identity, open_connection.caller
    return {
        "id": open_connection.id,
        "user": identity.user,
        "credential": identity.credential,
        "protocol": caller.protocol,
        "peer": str(caller),
        "since": open_connection.since_ms,
        "unacked": open_connection.unacked(),
    }
