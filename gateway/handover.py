"""How an HTTP connection becomes a WebSocket: its client is let in, hands are shaken, and another protocol goes on."""

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
    """What a handover asks of the connection it is on."""

    transport: Any
    loop: Any
    connections: Any

    def is_over(self) -> bool:
        """Return whether nobody is left to hand over."""

    def take_leave(self, problem: Problem) -> None:
        """Answer with an error, and end."""

    def let_go(self) -> None:
        """Another protocol has the transport from here on: read on, and hold nothing."""


class Handover:
    """One handshake, from its request on. Finding out who asks may take a while; what comes meanwhile is kept."""

    def __init__(self, connection: Connection, gateway: Gateway, scope: Scope, visit: Visit, behind: bytes) -> None:
        self._connection = connection
        self._gateway = gateway
        self._method: str = scope["method"]
        self._visit = visit
        self._behind = behind
        """What came behind the handshake."""
        is_tls = scope["scheme"] == "https"
        self._request = SocketRequest(
            scope["path"], scope["query_string"], scope["headers"], scope["server"],
            caller_of(scope, "websocket"), gateway.nobody, visit.logged_in, is_tls,
        )  # fmt: skip

    def begin(self) -> None:
        """Find out who asks; it may be known before this returns."""
        self._gateway.admit_socket(self._request, self._admitted)

    def keep(self, data: bytes) -> None:
        """Keep what the client sends before it has an answer."""
        self._behind += data

    def _admitted(self, access: Access | Problem | CurbstoneError) -> None:
        """The client is known, or may not come."""
        connection = self._connection
        if connection.is_over():
            return
        if isinstance(access, Problem):  # of a page that may not come
            connection.take_leave(access)
            return
        if isinstance(access, CurbstoneError):
            shaken = shake_hands(self._request, self._method, refusing(access))
        else:
            if access.identity.user:
                self._visit.logged_in(access.identity.user)
            shaken = shake_hands(self._request._replace(access=access), self._method, self._gateway.open_socket)
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
            gateway.unfinished,
            gateway.turns,
        )
        wire.leave = self._visit.leave
        connection.let_go()
        transport.set_protocol(wire)
        wire.begin(response, self._behind)
