"""How an HTTP connection becomes a WebSocket: log the client in, do the handshake, and change the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

from curbstone.access.authorization import AuthorizedBroker
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.login import caller_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.protocol import WebSocketProtocol, accept_handshake, refusing
from curbstone.gateway.websocket.session import SocketRequest
from curbstone.net.connection_limits import Slot

if TYPE_CHECKING:
    from curbstone.gateway.connection import HttpConnection


class Handover:
    """One handshake, from its request on. The login may take a while; input that arrives meanwhile is kept."""

    def __init__(self, connection: HttpConnection, scope: Scope, slot: Slot, behind: bytes) -> None:
        self._connection = connection
        self._gateway = connection.server.app.gateway
        self._method: str = scope["method"]
        self._slot = slot
        self._behind = behind
        """Input that arrived after the request."""
        is_tls = scope["scheme"] == "https"
        self._request = SocketRequest(
            scope["path"], scope["query_string"], scope["fields"], scope["server"],
            caller_of(scope, "websocket"), self._gateway.anonymous, slot.logged_in, is_tls,
        )  # fmt: skip

    def begin(self) -> None:
        """Log the client in. The handshake may be done before this returns."""
        self._gateway.sockets.admit(self._request, self._admitted)

    def keep(self, data: bytes) -> None:
        """Keep input that arrives before the handshake is answered."""
        self._behind += data

    def _admitted(self, access: AuthorizedBroker | Problem | CurbstoneError) -> None:
        """Do the handshake, or answer with an error: the login is done."""
        connection = self._connection
        if connection.is_closed():
            return
        if isinstance(access, Problem):  # a page of an origin that is not allowed
            connection.refuse(access)
            return
        if isinstance(access, CurbstoneError):
            shaken = accept_handshake(self._request, self._method, refusing(access))
        else:
            if access.identity.user:
                self._slot.logged_in(access.identity.user)
            request = self._request._replace(access=access)
            shaken = accept_handshake(request, self._method, self._gateway.sockets.open)
        if isinstance(shaken, Problem):
            connection.refuse(shaken)
            return
        response, session = shaken
        socket = WebSocketProtocol(
            connection.transport,
            session,
            self._gateway.message_bytes_max,
            connection.server.clients,
            connection.loop,
            self._slot.account,
            self._gateway.turns,
        )
        socket.leave = self._slot.leave
        connection.detach(socket)
        socket.begin(response, self._behind)
