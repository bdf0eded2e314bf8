"""The gateway's listener: uvicorn's HTTP protocol and our WebSockets on one TCP port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from curbstone.gateway.app import Gateway
from curbstone.gateway.http.problem import Problem, problem_body, problem_headers, title_of
from curbstone.gateway.http_protocol import HttpProtocol
from curbstone.net.admission import Admission
from curbstone.net.tcp import CROWDED, FULL, Entrance, Leave, SentAway

KEEP_ALIVE_S = 75
STOP_S_MAX = 5
"""How long clients may take to finish when the server stops."""

BACKLOG = 1024
_TICK_S = 1.0


class _Connections(set[Any]):
    """The open connections: `HttpProtocol` and `WebSocketProtocol`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_empty: Callable[[], object] | None = None
        self.on_left: Callable[[], object] | None = None

    def discard(self, connection: Any) -> None:
        """Forget one."""
        super().discard(connection)
        if self.on_left:
            self.on_left()
        if not self and self.on_empty:
            self.on_empty()


class GatewayServer:
    """Serves a gateway. Needs a running event loop; signals are none of its business."""

    def __init__(self, app: Gateway) -> None:
        self._app = app
        # uvicorn's Config only carries what its HTTP protocol looks up; its Server, which owns signals
        # and the process, is not used.
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
        self._connections = _Connections()
        self._state = ServerState()
        self._state.connections = self._connections
        self._server: asyncio.Server | None = None
        self._admission: Admission | None = None
        self._tick_timer: asyncio.TimerHandle | None = None

    async def start(self, address: tuple[str, int]) -> tuple[str, int]:
        """Listen; port 0 picks a free one. Return the address that is listened on."""
        self._loop = asyncio.get_running_loop()
        self._ticked_at = self._loop.time()
        # Made by the loop and not by hand, so that each connection gets TCP_NODELAY.
        self._server = await self._loop.create_server(self._protocol, *address, backlog=BACKLOG)
        self._tick()
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def admit_by(self, admission: Admission) -> None:
        """Serve only as many clients as `admission` lets in."""
        self._admission = admission
        admission.add(lambda: len(self._connections))
        self._connections.on_left = admission.left

    def _protocol(self) -> asyncio.Protocol:
        admission = self._admission
        if admission is None:
            return HttpProtocol(self._config, self._state, {}, self._loop)
        if not admission.admits(self._loop.call_soon):
            return SentAway(_answer(Problem(503, FULL)))
        return Entrance(admission, self._serve, _answer(Problem(503, CROWDED.format(admission.address_most))))

    def _serve(self, leave: Leave) -> HttpProtocol:
        wire = HttpProtocol(self._config, self._state, {}, self._loop)
        wire.leave = leave
        return wire

    def _tick(self) -> None:
        """Once a second: the Date header, and what takes too long."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        now = self._loop.time()
        # Where the tick itself comes late the process was stopped or busy, and what clients sent meanwhile may not
        # have been read: nobody is found silent before it was.
        if now - self._ticked_at < 2 * _TICK_S:
            for connection in list(self._connections):
                connection.check(now)
        self._ticked_at = now
        self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close WebSockets with 1001; after 5 s cut what is left."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self._app.release()
        connections = self._connections
        empty = asyncio.Event()
        connections.on_empty = empty.set
        for connection in list(connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                while connections:
                    await empty.wait()
        except TimeoutError:
            for connection in list(connections):
                connection.abort()
        if self._tick_timer:
            self._tick_timer.cancel()
        await server.wait_closed()


def _answer(problem: Problem) -> bytes:
    """Return a whole response, after which the connection ends."""
    body = problem_body(problem)
    headers = [*problem_headers(problem), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    lines = [b"HTTP/1.1 %d %s" % (problem.status, title_of(problem.status).encode())]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", body])
