"""The gateway: an application that answers HTTP requests and opens WebSockets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from starlette.responses import RedirectResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.host import Host
from curbstone.core.names import queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.head import has_wrong_slash
from curbstone.gateway.http.login import Logins, access_of
from curbstone.gateway.http.long_poll import Polls
from curbstone.gateway.http.origin_policy import OriginPolicy, answer_preflight, is_preflight
from curbstone.gateway.http.problem import ClientGone, Problem, reason_of
from curbstone.gateway.http.responses import reply_problem
from curbstone.gateway.http.routing import Routes
from curbstone.gateway.http.scope import base_of
from curbstone.gateway.resources.messages.event_stream import EventStreams
from curbstone.gateway.resources.metrics.figures import Process
from curbstone.gateway.routes import queue_routes, server_routes
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.traffic import GatewayTraffic
from curbstone.gateway.websocket.routes import WebSocketRoutes
from curbstone.gateway.websocket.session import Opener
from curbstone.net.fair_reader import Turns

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator


PAGES = ("/console", "/docs", "/docs/problems")
"""Pages that people type into a browser. If the path has a slash at the end, they are redirected to the page."""

logger = logging.getLogger("curbstone.gateway")


class Application(Protocol):
    """What a `GatewayServer` serves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. `scope` is that of `Gateway.__call__`."""

    @property
    def gateway(self) -> Gateway:
        """The gateway that opens WebSockets; raise CurbstoneError if this application has none."""

    def release(self) -> None:
        """Answer the waiting requests and end all streams except those of followers: the server is stopping."""

    def release_followers(self) -> None:
        """End each follower's stream once it has received everything. Called after the engine has stopped."""


class Gateway:
    """Answers HTTP requests as an ASGI application, and opens WebSockets for the server, which drives them itself.

    WebSockets do not go through ASGI, because an await for each message each way would be most of their cost.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        origins: OriginPolicy,
        logins: Logins,
        sockets: WebSocketRoutes,
        polls: Polls,
        streams: EventStreams,
        message_bytes_max: int,
        turns: Turns,
        traffic: Traffic,
        last_ends: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.routes = routes
        self._found = Routes(routes)
        self._traffic = traffic
        self._origins = origins
        self._logins = logins
        self._shares_queues = logins.anonymous.shares_queues
        self.anonymous = logins.anonymous
        """The access of a client that has not logged in."""
        self.sockets = sockets
        """Opens WebSockets."""
        self.polls = polls
        self.streams = streams
        """The event streams."""
        self.message_bytes_max = message_bytes_max
        """The largest WebSocket message that is accepted."""
        self.turns = turns
        """The turns of all input of the process."""
        self._last_ends = last_ends

    @property
    def gateway(self) -> Gateway:
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; every error becomes a problem reply. The order of the checks matters.

        `scope` is that of ASGI, with additions: `fields` (see `Fields`), `length` of the body (-1 if it is not known),
        the client as `peer`, and its connection as `slot`.
        """
        try:
            # Until `send` is replaced here, a refusal has no CORS headers; from then on it has.
            send = self._origins.admit(scope, send)
            if scope["method"] == "OPTIONS" and is_preflight(scope):
                await answer_preflight(scope, send)
                return
            if has_wrong_slash(scope["path"]):
                raise Problem(400, "only the name of an event or the id of a batch can contain a slash, as %2F")
            await self._logins.admit(scope)
            found = self._found.find(scope)
            if found is None:
                await _not_found(scope, receive, send)
                return
            handler, scope["path_params"] = found
            if self._shares_queues:
                await find_queue(scope)
            await handler(scope, receive, send)
        except Exception as error:
            await self._refuse(error, scope, send)

    async def _refuse(self, error: Exception, scope: Scope, send: Send) -> None:
        """Count the error that ended a request, and answer with it. Must be called while it is being handled."""
        if isinstance(error, Problem | CurbstoneError):
            self._traffic.refuse(error, reason_of(error))
            await reply_problem(send, error)
        elif not isinstance(error, ClientGone):
            logger.exception("%s %r failed", scope["method"], scope["path"])
            await reply_problem(send, Problem(500, "an error in the server; its log has more"))

    def release(self) -> None:
        self.polls.release()
        self.streams.release()

    def release_followers(self) -> None:
        for end in self._last_ends:
            end()


async def find_queue(scope: Scope) -> None:
    """On a cluster, fetch the queues that other servers have just created if a request's queue is unknown."""
    path = scope["path_params"]
    if "queue" not in path:
        return
    access = access_of(scope)
    with suppress(BadRequest):  # the resource reports it, in its own way
        if access.may_be_new(queue_name(path["queue"], path.get("project", access.home))):
            await answer(access.catch_up)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    page = scope["path"].removesuffix("/")
    if page in PAGES and scope["method"] in ("GET", "HEAD"):
        await RedirectResponse(base_of(scope) + page, 308)(scope, receive, send)
        return
    raise Problem(404, f"there is nothing at {scope['path'][:200]!r}")


def create_app(
    authenticator: Authenticator,
    host: Host,
    settings: GatewaySettings,
    *,
    more_routes: Callable[[OriginPolicy], Sequence[Route]] | None = None,
    more_sockets: Mapping[str, Opener] | None = None,
    more_traffic: Mapping[str, Traffic] | None = None,
    last_ends: Sequence[Callable[[], None]] = (),
    turns: Turns | None = None,
    process: Process | None = None,
) -> Gateway:
    """Return the gateway.

    `more_routes(origins)` returns routes to add after the gateway's own. `more_sockets` has the WebSockets of other
    protocols by path, and `more_traffic` the counters of those protocols by name, for /metrics. `last_ends` end the
    streams of followers after the engine has stopped. `turns` are shared by all input of the process; by default the
    gateway creates its own. `process` has the figures that neither the gateway nor the broker counts.
    """
    process = process or Process()
    traffic = GatewayTraffic()
    protocols = {"http": traffic.http, "websocket": traffic.websocket, "sse": traffic.sse, **(more_traffic or {})}
    streams = EventStreams(authenticator, host, traffic.sse)
    origins = OriginPolicy(settings)
    polls = Polls()
    logins = Logins(authenticator, documents_are_open=settings.documents_are_open)
    sockets = WebSocketRoutes(authenticator, settings, origins, logins, traffic.websocket, more_sockets)
    routes = [
        *queue_routes(settings, origins, polls, streams, traffic),
        *server_routes(settings, authenticator, host, protocols, process),
        *(more_routes(origins) if more_routes is not None else ()),
    ]
    turns = turns or Turns(host)
    return Gateway(
        routes, origins, logins, sockets, polls, streams, settings.frame_bytes_max, turns, traffic.http, last_ends
    )
