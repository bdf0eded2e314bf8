"""The gateway as one ASGI application, and where each path leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.host import Host
from curbstone.core.names import DEFAULT_PROJECT, queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.login import Logins, access_of
from curbstone.gateway.http.long_poll import Polls
from curbstone.gateway.http.origin_policy import OriginPolicy, answer_preflight, is_preflight
from curbstone.gateway.http.problem import ClientGone, Problem, reason_of
from curbstone.gateway.http.reply import reply_problem
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.routing import Routing
from curbstone.gateway.resources import documents
from curbstone.gateway.resources.admin import Admin
from curbstone.gateway.resources.batch import Batch
from curbstone.gateway.resources.browse import Browse
from curbstone.gateway.resources.console import CONSOLE
from curbstone.gateway.resources.event_stream import EventStreams
from curbstone.gateway.resources.events import Events
from curbstone.gateway.resources.explain import Explain
from curbstone.gateway.resources.figures import Figures, Process
from curbstone.gateway.resources.front import front
from curbstone.gateway.resources.health import Health
from curbstone.gateway.resources.history import History
from curbstone.gateway.resources.journal import Journal
from curbstone.gateway.resources.leases import Leases
from curbstone.gateway.resources.message import OneMessage
from curbstone.gateway.resources.messages import Messages
from curbstone.gateway.resources.metrics import Metrics
from curbstone.gateway.resources.offsets import Offsets
from curbstone.gateway.resources.publishing import Producers
from curbstone.gateway.resources.queues import Queues
from curbstone.gateway.resources.reading_groups import ReadingGroups
from curbstone.gateway.resources.reading_many import ReadingMany
from curbstone.gateway.resources.requests import Requests
from curbstone.gateway.resources.stats import Statistics
from curbstone.gateway.resources.transactions import Transactions
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.traffic import GatewayTraffic
from curbstone.gateway.websocket.routes import WebSocketRoutes
from curbstone.gateway.websocket.session import Opener, Session, SocketRequest
from curbstone.net.turns import Turns
from curbstone.net.unfinished import Unfinished

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.gate import Gate

QUEUES = "/v2/{project}/queues"
QUEUE = "/v2/{project}/queues/{queue}"
EVENTS = "/v2/{project}/events"
TRANSACTION = "/v2/{project}/transactions/{id}"

logger = logging.getLogger("curbstone.gateway")


def routes(
    settings: GatewaySettings,
    guard: OriginPolicy,
    polls: Polls,
    streams: EventStreams,
    traffic: GatewayTraffic,
) -> list[Route]:
    """Return the routes of queues and messages, the busiest first.

    One resource a path, so that a wrong verb learns the right ones.
    """
    queues = Queues(settings)
    leases = Leases(settings, polls, streams, traffic.http)
    messages = Messages(settings, guard, polls, streams, leases, traffic.http)
    one = OneMessage()
    requests = Requests(settings, polls, traffic.http)
    batch = Batch(settings, traffic.http)
    upkeep = Admin(settings)
    groups = ReadingGroups(settings)
    many = ReadingMany(settings, polls)
    transactions = Transactions(settings, traffic.http)
    events = Events(settings, traffic.http)
    return [
        Route(QUEUE + "/messages", Resource(GET=messages.get, POST=messages.post, DELETE=messages.delete)),
        Route(QUEUE + "/messages/batch", Resource(POST=batch.post)),
        Route(QUEUE + "/messages/lease", Resource(POST=leases.lease)),
        Route(QUEUE + "/messages/ack", Resource(POST=leases.ack)),
        Route(QUEUE + "/messages/nack", Resource(POST=leases.nack)),
        Route(QUEUE + "/messages/extend", Resource(POST=leases.extend)),
        Route(QUEUE + "/messages/{id}", Resource(GET=one.get, DELETE=one.delete)),
        Route(QUEUE + "/messages/{id}/history", Resource(GET=History().get)),
        Route(QUEUE + "/leases/{lease}", Resource(DELETE=leases.confirm)),
        Route(QUEUE + "/producers/{producer}", Resource(GET=Producers().get)),
        Route(QUEUE + "/request", Resource(POST=requests.post)),
        Route("/v2/replies/{id}", Resource(POST=requests.answer)),
        Route(QUEUE + "/explain", Resource(GET=Explain().get)),
        Route(QUEUE + "/pause", Resource(POST=upkeep.pause)),
        Route(QUEUE + "/resume", Resource(POST=upkeep.resume)),
        Route(QUEUE + "/purge", Resource(POST=upkeep.purge)),
        Route(QUEUE + "/redrive", Resource(POST=upkeep.redrive)),
        Route(QUEUE + "/browse", Resource(GET=Browse().get)),
        Route(QUEUE + "/offsets", Resource(GET=Offsets(polls).get)),
        Route(QUEUE + "/journal", Resource(GET=Journal(polls).get)),
        Route(QUEUE + "/groups", Resource(GET=groups.list)),
        Route(QUEUE + "/groups/{group}", Resource(GET=groups.get, PUT=groups.put, DELETE=groups.delete)),
        Route(QUEUE + "/groups/{group}/ack", Resource(POST=groups.ack)),
        Route("/v2/{project}/offsets", Resource(POST=many.offsets)),
        Route("/v2/{project}/acks", Resource(POST=many.ack)),
        Route(QUEUE, Resource(PUT=queues.put, GET=queues.get, DELETE=queues.delete, OPTIONS=queues.options)),
        Route(QUEUES, Resource(GET=queues.list)),
        Route("/v2", Resource(GET=queues.projects)),
        Route(EVENTS + "/{event}/messages", Resource(POST=events.post)),
        Route(EVENTS + "/{event}/messages/batch", Resource(POST=events.post_batch)),
        Route(EVENTS + "/{event}/queues/{queue}", Resource(PUT=events.bind, DELETE=events.unbind)),
        Route(EVENTS, Resource(GET=events.list)),
        Route(TRANSACTION + "/parts/{part}", Resource(PUT=transactions.put_part)),
        Route(TRANSACTION + "/commit", Resource(POST=transactions.commit)),
        Route(TRANSACTION, Resource(GET=transactions.get, DELETE=transactions.delete)),
    ]


def server_routes(gate: Gate, host: Host, protocols: Mapping[str, Traffic], process: Process) -> list[Route]:
    """Return the routes beside those of queues: health, figures, documents, the console."""
    health = Health()
    figures = Figures(gate, host, protocols, process)
    return [
        Route("/", Resource(GET=front)),
        Route("/healthz", Resource(GET=health.alive)),
        Route("/readyz", Resource(GET=health.ready)),
        Route("/metrics", Resource(GET=Metrics(figures).get)),
        Route("/v2/stats", Resource(GET=Statistics(figures).get)),
        Route("/openapi.yaml", Resource(GET=documents.openapi_yaml)),
        Route("/openapi.json", Resource(GET=documents.openapi_json)),
        Route("/asyncapi.yaml", Resource(GET=documents.asyncapi_yaml)),
        Route("/docs", Resource(GET=documents.DOCS.page)),
        Route("/docs/problems", Resource(GET=documents.problems)),
        Route("/docs/{file}", Resource(GET=documents.DOCS.part)),
        Route("/console", Resource(GET=CONSOLE.page)),
        Route("/console/{file}", Resource(GET=CONSOLE.part)),
    ]


class Gateway:
    """The ASGI application for HTTP, and the opener of WebSockets.

    WebSockets do not go through ASGI: an await per message each way is most of what they cost. The server
    asks `open_socket` for a session and drives that itself (see `websocket.protocol`).
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
        self._traffic = traffic
        self.routes = list(routes)
        self._ways = Routing(self.routes)
        self._guard = guard
        self._logins = logins
        self._shares_queues = logins.nobody.shares_queues
        self.nobody = logins.nobody
        """What one may who is not logged in."""
        self._sockets = sockets
        self._polls = polls
        self._streams = streams
        self.message_bytes_max = message_bytes_max
        """The largest WebSocket message that is read."""
        self.unfinished = Unfinished.for_messages(message_bytes_max)
        """Of all WebSockets."""
        self.turns = turns
        """Of all that is read in the process."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes a problem reply."""
        assert scope["type"] == "http", f"{scope['type']} does not go through ASGI here"
        try:
            send = self._guard.admit(scope, send)
            if scope["method"] == "OPTIONS" and is_preflight(scope):
                await answer_preflight(scope, send)
                return
            raw_path: bytes = scope["raw_path"]
            if b"%2" in raw_path and b"%2f" in raw_path.lower():
                raise Problem(400, "a name can't hold a slash, also not as %2F")
            await self._logins.admit(scope)
            handler, scope["path_params"] = self._ways.find(scope)
            if self._shares_queues:
                await _look_for_queue(scope)
            await handler(scope, receive, send)
        except (Problem, CurbstoneError) as error:
            self._traffic.refuse(error, reason_of(error))
            await reply_problem(send, error)
        except ClientGone:
            pass
        except Exception:
            logger.exception("%s %r failed", scope["method"], scope["path"])
            await reply_problem(send, Problem(500, "an error in the server; its log has more"))

    def admit_socket(
        self, request: SocketRequest, on_done: Callable[[Access | CurbstoneError | Problem], None]
    ) -> None:
        """Call back with what the client of a WebSocket may do, or why it may not come; maybe before this returns."""
        self._sockets.admit(request, self._logins, on_done)

    def open_socket(self, request: SocketRequest) -> Session:
        """Return the session for a WebSocket; raise Problem or CurbstoneError to refuse it."""
        return self._sockets.open(request)

    def release(self) -> None:
        """Answer all requests that wait for a message, and end all streams: the server stops."""
        self._polls.release()
        self._streams.release()


async def _look_for_queue(scope: Scope) -> None:
    """Where a request is for a queue that is not known: another server may have made it just now."""
    path = scope["path_params"]
    if "queue" not in path:
        return
    access = access_of(scope)
    try:
        access.find(queue_name(path["queue"], path.get("project", DEFAULT_PROJECT)))
    except NoSuchQueue:
        await answer(access.catch_up)
    except CurbstoneError:
        pass  # which the resource says, in its own way


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
    """Return the gateway behind a gate.

    `more_routes(guard)` returns those that come after its own; `more_sockets` are the WebSockets of other protocols
    by path, `more_traffic` what those protocols count, by their names, for /metrics. `turns` are those of all that is
    read in the process; its own if none are given. `process` has the figures that neither it nor the broker counts.
    """
    process = process or Process()
    traffic = GatewayTraffic()
    protocols = {"http": traffic.http, "websocket": traffic.websocket, "sse": traffic.sse, **(more_traffic or {})}
    streams = EventStreams(host, traffic.sse)
    guard = OriginPolicy(settings)
    polls = Polls()
    sockets = WebSocketRoutes(settings, guard, traffic.websocket, more_sockets)
    own = [*routes(settings, guard, polls, streams, traffic), *server_routes(gate, host, protocols, process)]
    more = more_routes(guard) if more_routes is not None else ()
    logins = Logins(gate, documents_are_open=settings.documents_are_open)
    turns = turns or Turns(host)
    return Gateway([*own, *more], guard, logins, sockets, polls, streams, settings.frame_bytes_max, turns, traffic.http)
