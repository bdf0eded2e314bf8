"""How an HTTP connection becomes a WebSocket: log the client in, do the handshake, and change the protocol."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.types import Scope

from curbstone.access.door import Access
from curbstone.core.errors import CurbstoneError
from curbstone.gateway.app import Gateway
from curbstone.gateway.http.login import caller_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.protocol import WebSocketProtocol, refusing, shake_hands
from curbstone.gateway.websocket.session import SocketRequest
from curbstone.net.admission import Visit


class Connection(Protocol):
    """The connection that is handed over."""

    transport: Any
    loop: Any
    connections: Any

    def is_over(self) -> bool:
        """Return whether the client or the connection is gone."""

    def take_leave(self, problem: Problem) -> None:
        """Answer with an error, and close."""

    def let_go(self) -> None:
        """Let go of the transport, which another protocol takes over. Reading must be on, and no input be kept."""


class Handover:
    """One handshake, from its request on. The login may take a while; input that comes meanwhile is kept."""

    def __init__(self, connection: Connection, gateway: Gateway, scope: Scope, visit: Visit, behind: bytes) -> None:
        self._connection = connection
        self._gateway = gateway
        self._method: str = scope["method"]
        self._visit = visit
        self._behind = behind
        """Input that came after the request."""
        is_tls = scope["scheme"] == "https"
        self._request = SocketRequest(
            scope["path"], scope["query_string"], scope["fields"], scope["server"],
            caller_of(scope, "websocket"), gateway.nobody, visit.logged_in, is_tls,
        )  # fmt: skip

    def begin(self) -> None:
        """Log the client in. The handshake may be done before this returns."""
        self._gateway.sockets.admit(self._request, self._admitted)

    def keep(self, data: bytes) -> None:
        """Keep input that comes before the handshake is answered."""
        self._behind += data

    def _admitted(self, access: Access | Problem | CurbstoneError) -> None:
        """Do the handshake, or answer with an error: the login is done."""
        connection = self._connection
        if connection.is_over():
            return
        if isinstance(access, Problem):  # a page of an origin that is not allowed
            connection.take_leave(access)
            return
        if isinstance(access, CurbstoneError):
            shaken = shake_hands(self._request, self._method, refusing(access))
        else:
            if access.identity.user:
                self._visit.logged_in(access.identity.user)
            shaken = shake_hands(self._request._replace(access=access), self._method, self._gateway.sockets.open)
        if isinstance(shaken, Problem):
            connection.take_leave(shaken)
            return
        response, session = shaken
        gateway = self._gateway
        transport = connection.transport
        wire = WebSocketProtocol(
            transport,
            session,
            gateway.message_bytes_max,
            connection.connections,
            connection.loop,
            self._visit.account,
            gateway.turns,
        )
        wire.leave = self._visit.leave
        connection.let_go()
        transport.set_protocol(wire)
        wire.begin(response, self._behind)
