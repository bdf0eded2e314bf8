"""The gateway: a Starlette application for HTTP that also opens WebSockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.hot_paths import HotPaths
from curbstone.gateway.http.login import Logins
from curbstone.gateway.http.long_poll import Polls
from curbstone.gateway.http.middleware import (
    FreshQueues,
    Login,
    Names,
    Origins,
    Problems,
    answer_error,
    check_names,
    look_for_queue,
)
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.resources.event_stream import EventStreams
from curbstone.gateway.resources.figures import Process
from curbstone.gateway.routes import queue_routes, server_routes
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.traffic import GatewayTraffic
from curbstone.gateway.websocket.routes import WebSocketRoutes
from curbstone.gateway.websocket.session import Opener, Session, SocketRequest
from curbstone.net.turns import Turns

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.gate import Gate


PAGES = ("/console", "/docs", "/docs/problems")
"""Pages that people type into a browser. If the path has a slash at the end, they are redirected to the page."""


class Gateway(Starlette):
    """The ASGI application, which also opens WebSockets.

    Requests for single messages take a shorter way than through Starlette, by the same rules. WebSockets do not go
    through ASGI, because an await for each message each way would be most of their cost. Instead the server asks
    `open_socket` for a session and drives it itself (see `websocket.protocol`).
    """

    def __init__(
        self,
        routes: Sequence[Route],
        guard: OriginPolicy,
        logins: Logins,
        sockets: WebSocketRoutes,
        polls: Polls,
        streams: EventStreams,
        message_bytes_max: int,
        turns: Turns,
        traffic: Traffic,
    ) -> None:
        self._shares_queues = logins.nobody.shares_queues
        if self._shares_queues:
            routes = [_with_fresh_queues(route) for route in routes]
        super().__init__(
            routes=routes,
            middleware=[
                Middleware(Problems, traffic),  # refusals of `Origins`: no CORS headers on them
                Middleware(Origins, guard),
                Middleware(Problems, traffic),  # refusals from here on: with CORS headers
                Middleware(Names),
                Middleware(Login, logins),
            ],
        )
        self.router.redirect_slashes = False
        self.router.default = _nothing_there
        self._hot = HotPaths(routes)
        self._traffic = traffic
        self._guard = guard
        self._logins = logins
        self.nobody = logins.nobody
        """The access of a client that has not logged in."""
        self._sockets = sockets
        self._polls = polls
        self._streams = streams
        self.message_bytes_max = message_bytes_max
        """The largest WebSocket message that is accepted."""
        self.turns = turns
        """The turns of all input of the process."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes a problem reply."""
        assert scope["type"] == "http", f"{scope['type']} does not go through ASGI here"
        way = self._hot.find(scope)
        if way is None:
            await super().__call__(scope, receive, send)
            return
        try:
            send = self._guard.admit(scope, send)
            check_names(scope)
            await self._logins.admit(scope)
            handler, scope["path_params"] = way
            if self._shares_queues:
                await look_for_queue(scope)
            await handler(scope, receive, send)
        except Exception as error:
            await answer_error(error, scope, send, self._traffic)

    def admit_socket(
        self, request: SocketRequest, on_done: Callable[[Access | CurbstoneError | Problem], None]
    ) -> None:
        """Call back with the access of a WebSocket's client or the error that refuses it, maybe before returning."""
        self._sockets.admit(request, self._logins, on_done)

    def open_socket(self, request: SocketRequest) -> Session:
        """Return the session for a WebSocket; raise Problem or CurbstoneError to refuse it."""
        return self._sockets.open(request)

    def release(self) -> None:
        """Answer all requests that wait for messages, and end all streams: the server stops."""
        self._polls.release()
        self._streams.release()


def _with_fresh_queues(route: Route) -> Route:
    if "queue" not in route.param_convertors:
        return route
    return Route(route.path, route.endpoint, middleware=[Middleware(FreshQueues)])


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    page = scope["path"].removesuffix("/")
    if page in PAGES and scope["method"] in ("GET", "HEAD"):
        await RedirectResponse(page, 308)(scope, receive, send)
        return
    raise Problem(404, f"there is nothing at {scope['path'][:200]!r}")


def create_app(
    gate: Gate,
    host: Host,
    settings: GatewaySettings,
    *,
    more_routes: Callable[[OriginPolicy], Sequence[Route]] | None = None,
    more_sockets: Mapping[str, Opener] | None = None,
    more_traffic: Mapping[str, Traffic] | None = None,
    turns: Turns | None = None,
    process: Process | None = None,
) -> Gateway:
    """Return the gateway application for a gate.

    `more_routes(guard)` returns routes to add after the gateway's own. `more_sockets` has the WebSockets of other
    protocols by path, and `more_traffic` the counters of those protocols by name, for /metrics. `turns` are shared by
    all input of the process; by default the gateway makes its own. `process` has the figures that neither the gateway
    nor the broker counts.
    """
    process = process or Process()
    traffic = GatewayTraffic()
    protocols = {"http": traffic.http, "websocket": traffic.websocket, "sse": traffic.sse, **(more_traffic or {})}
    streams = EventStreams(gate, host, traffic.sse)
    guard = OriginPolicy(settings)
    polls = Polls()
    sockets = WebSocketRoutes(gate, settings, guard, traffic.websocket, more_sockets)
    own = [
        *queue_routes(settings, guard, polls, streams, traffic),
        *server_routes(settings, gate, host, protocols, process),
    ]
    more = more_routes(guard) if more_routes is not None else ()
    logins = Logins(gate, documents_are_open=settings.documents_are_open)
    turns = turns or Turns(host)
    return Gateway([*own, *more], guard, logins, sockets, polls, streams, settings.frame_bytes_max, turns, traffic.http)
