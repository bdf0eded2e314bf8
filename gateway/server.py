"""The gateway's server: HTTP, with uvicorn's protocol, and WebSockets on the same TCP ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from curbstone.gateway.app import Gateway
from curbstone.gateway.http.problem import Problem, problem_body, problem_headers, title_of
from curbstone.gateway.http_protocol import HttpProtocol
from curbstone.gateway.limits import KEEP_ALIVE_S, STOP_S_MAX
from curbstone.gateway.websocket.protocol import WebSocketProtocol
from curbstone.net.address import Address
from curbstone.net.admission import Visit
from curbstone.net.crowd import Crowd
from curbstone.net.entrance import Entrance, Listener
from curbstone.net.peer import Peer

_TICK_S = 1.0


class GatewayServer:
    """Serves a gateway. Needs a running event loop, and does not handle signals."""

    def __init__(self, app: Gateway, entrance: Entrance | None = None) -> None:
        """`entrance` is shared by the whole process; by default the server makes its own."""
        self._app = app
        self.entrance = entrance or Entrance()
        # uvicorn's Config only carries the settings that its HTTP protocol looks up. Its Server, which would handle
        # signals and own the process, is not used.
        self._config = Config(
            app,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._connections: Crowd[Any] = Crowd()
        self._state = ServerState()
        self._state.connections = self._connections
        self._listeners: list[Listener] = []
        self._tick_timer: asyncio.TimerHandle | None = None

    def connections(self) -> Mapping[str, int]:
        """Return the number of connections by protocol."""
        sockets = sum(isinstance(each, WebSocketProtocol) for each in self._connections)
        return {"http": len(self._connections) - sockets, "websocket": sockets}

    async def start(self, address: tuple[str, int] | Address) -> tuple[str, int]:
        """Listen on one more address; return the host and port bound. Raise OSError if that is impossible."""
        self._loop = asyncio.get_running_loop()
        listener = await self.entrance.listen(address, self._serve, _word, has_spares=True)
        self._listeners.append(listener)
        if self._tick_timer is None:
            self._ticked_at = self._loop.time()
            self._tick()
        return listener.bound

    def _serve(self, peer: Peer, visit: Visit) -> HttpProtocol:
        return HttpProtocol(self._config, self._state, self._loop, peer, visit, self.entrance.trusted_proxies)

    def _tick(self) -> None:
        """Renew the Date header, and check the deadlines of all connections. Runs once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        now = self._loop.time()
        # If the tick itself comes late, the process was stopped or busy, and input that clients sent meanwhile may not
        # have been read yet. So nobody is taken for silent until the next tick.
        if now - self._ticked_at < 2 * _TICK_S:
            for connection in list(self._connections):
                connection.check(now)
        self._ticked_at = now
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        """Stop accepting, answer the requests under way, close WebSockets with 1001; abort what is left after 5 s."""
        for listener in self._listeners:
            listener.close()
        self._app.release()
        await self._connections.leave(STOP_S_MAX)
        if self._tick_timer:
            self._tick_timer.cancel()


def _word(text: str) -> bytes:
    """Return the HTTP response for a refused client."""
    problem = Problem(503, text)
    body = problem_body(problem)
    headers = [*problem_headers(problem), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    lines = [b"HTTP/1.1 %d %s" % (problem.status, title_of(problem.status).encode())]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", body])
