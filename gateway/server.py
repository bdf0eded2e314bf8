"""The gateway's server: HTTP, and WebSockets on the same TCP ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import formatdate

from curbstone.gateway.app import Application
from curbstone.gateway.connection import HttpConnection
from curbstone.gateway.http.problem import Problem, closing_response
from curbstone.gateway.limits import FOLLOWERS_STOP_S_MAX, STOP_S_MAX
from curbstone.gateway.websocket.protocol import WebSocketProtocol
from curbstone.net.acceptor import Acceptor, Listener
from curbstone.net.address import Address
from curbstone.net.connection_limits import Slot
from curbstone.net.connection_set import ConnectionSet
from curbstone.net.peer import Peer

_TICK_S = 1.0


class GatewayServer:
    """Serves an application. Needs a running event loop, and does not handle signals."""

    def __init__(self, app: Application, acceptor: Acceptor | None = None) -> None:
        """`acceptor` is shared by the whole process; by default the server creates its own."""
        self.app = app
        self.acceptor = acceptor or Acceptor()
        self.clients: ConnectionSet[HttpConnection | WebSocketProtocol] = ConnectionSet()
        """The open connections."""
        self.answered = 0
        """How many requests have been answered."""
        self.date = b""
        """The value of the Date header field of all answers."""
        self._listeners: list[Listener] = []
        self._tick_timer: asyncio.TimerHandle | None = None

    def connections(self) -> Mapping[str, int]:
        """Return the number of connections by protocol."""
        sockets = sum(isinstance(each, WebSocketProtocol) for each in self.clients)
        return {"http": len(self.clients) - sockets, "websocket": sockets}

    async def start(self, address: tuple[str, int] | Address) -> tuple[str, int]:
        """Listen on one more address; return the host and port bound. Raise OSError if that is impossible."""
        self._loop = asyncio.get_running_loop()
        listener = await self.acceptor.listen(address, self._serve, _refusal, has_reserve=True)
        self._listeners.append(listener)
        if self._tick_timer is None:
            self._ticked_at = self._loop.time()
            self._tick()
        return listener.bound

    def _serve(self, peer: Peer, slot: Slot) -> HttpConnection:
        return HttpConnection(self, self._loop, peer, slot)

    def _tick(self) -> None:
        """Renew the Date header, and check the deadlines of all connections. Runs once a second."""
        self.date = formatdate(usegmt=True).encode()
        now = self._loop.time()
        # If the tick itself is late, the process was stopped or busy, and input from that time may still be unread. So
        # no client counts as silent until the next tick.
        if now - self._ticked_at < 2 * _TICK_S:
            for connection in list(self.clients):
                connection.check(now)
        self._ticked_at = now
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        """Stop accepting, answer the requests under way, close WebSockets with 1001; abort the rest after 5 s.

        Followers stay until `stop_followers`, because other requests may wait for their acknowledgements.
        """
        for listener in self._listeners:
            listener.close()
        self.app.release()
        await self.clients.shut_down(STOP_S_MAX, stays=_is_follower)

    async def stop_followers(self) -> None:
        """End followers' streams once they have everything, and close; abort the rest after a second."""
        self.app.release_followers()
        await self.clients.shut_down(FOLLOWERS_STOP_S_MAX)
        if self._tick_timer:
            self._tick_timer.cancel()


def _is_follower(connection: HttpConnection | WebSocketProtocol) -> bool:
    return isinstance(connection, HttpConnection) and connection.slot.is_follower


def _refusal(text: str) -> bytes:
    """Return the HTTP response for a client that is refused because there are too many."""
    return closing_response(Problem(503, text))
