"""The WebSockets of queues and events: creates the session for a request, or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from curbstone.access.caller import CURRENT_CALLER
from curbstone.access.errors import LOGIN_REQUIRED, NotLoggedIn
from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.masks import published_event
from curbstone.core.names import queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.parameters import (
    encoding_of,
    group_of,
    groups_of,
    lease_ms,
    parse_query,
    refuse_filter,
    whole_number,
)
from curbstone.gateway.http.head import event_in
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.limits import WINDOW_MAX
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.consume_session import ConsumeSession
from curbstone.gateway.websocket.login import SocketLogin
from curbstone.gateway.websocket.producer_sequence import ProducerSequence
from curbstone.gateway.websocket.publish_session import PublishSession
from curbstone.gateway.websocket.publish_targets import ToEvent, ToQueue
from curbstone.gateway.websocket.queues_session import QueuesSession
from curbstone.gateway.websocket.session import Opener, Session, SocketRequest
from curbstone.gateway.websocket.socket_leases import SocketLeases
from curbstone.gateway.websocket.subscription import Subscription

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.host import Host
    from curbstone.gateway.http.login import Logins

_PATH = re.compile(r"/v2/([^/]+)/(queues|events)/([^/]+)(?:/messages)?")
_SEVERAL = re.compile(r"/v2/([^/]+)/queues")
_CONFIRMS = {"": False, "empty": False, "json": True}


class WebSocketRoutes:
    """Opens sessions for `…/queues/{queue}/messages`, `…/events/{event}/messages` and `…/queues` of a project.

    The paths in `others` belong to other protocols, whose openers are called.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        settings: GatewaySettings,
        origins: OriginPolicy,
        logins: Logins,
        traffic: Traffic,
        others: Mapping[str, Opener] | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._traffic = traffic
        self._settings = settings
        self._origins = origins
        self._logins = logins
        self._others = dict(others or {})

    def admit(
        self, request: SocketRequest, on_done: Callable[[AuthorizedBroker | CurbstoneError | Problem], None]
    ) -> None:
        """Call back with the client's access, or with the error that refuses it; maybe before this returns."""
        host = request.header(b"host")
        try:
            self._origins.check_host(host)
            self._origins.check_socket_origin(request.header(b"origin"), host)
        except Problem as problem:
            on_done(problem)
            return

        def admitted(access: AuthorizedBroker | CurbstoneError) -> None:
            if isinstance(access, CurbstoneError) or not _may_be_new(request.path, access):
                on_done(access)
            else:
                access.catch_up(lambda error: on_done(access if error is None else error))

        has_own = request.path in self._others or b"ticket=" in request.query
        self._logins.admit_socket(request.fields, request.caller, request.is_tls, has_own, admitted)

    def open(self, request: SocketRequest) -> Session:
        """Return the session for a request that `admit` has admitted; raise Problem or CurbstoneError to refuse it."""
        CURRENT_CALLER.set(request.caller)
        other = self._others.get(request.path)
        if other is not None:
            ticket = parse_query(request.query).get("ticket")
            access = request.access
            if ticket:
                access = self._authenticator.use_ticket(ticket, "stomp", None, request.caller)
            return other(request._replace(access=access))
        several = _SEVERAL.fullmatch(request.path)
        if several is not None:
            return self._of_several(request, queue_name("any", several[1]).project)
        match = _PATH.fullmatch(request.path)
        if match is None:
            raise Problem(404, "there is no WebSocket at this path")
        project, kind, named = match.groups()
        protocol = _subprotocol(request)
        query = parse_query(request.query)
        if kind == "events":
            event = published_event(event_in(named))
            return self._to_event(request, queue_name("any", project).project, event, protocol, query)
        name = queue_name(named, project)
        refuse_filter(query)
        limit = whole_number("limit", query.get("limit", self._settings.default_limit), 1, WINDOW_MAX)
        encoding = encoding_of(query)
        group = group_of(query)
        groups = groups_of(query.get("groups", ""))
        confirms = _CONFIRMS.get(query.get("confirm", ""))
        if confirms is None:
            raise BadRequest(f"bad confirm {query['confirm'][:80]!r}: json, or leave it out")
        if confirms and protocol == ConsumeSession.subprotocol and "ack" not in query:
            raise BadRequest("confirm=json needs ack")
        access = request.access
        if "ticket" in query:
            access = self._authenticator.use_ticket(query["ticket"], protocol, name, request.caller)
        right = Right.SEND if protocol == PublishSession.subprotocol else Right.RECEIVE
        queue = access.queue(name, right)
        connections = self._authenticator.connections
        connections.check(access)
        login = SocketLogin(connections, access, request.caller, lambda now: now.check(right, name))
        traffic = self._traffic
        leases = _leases_of(query, connections.host) if protocol == ConsumeSession.subprotocol else None
        if protocol == PublishSession.subprotocol:
            target = ToQueue(queue, lambda: login.access, confirm_ids=confirms)
            numbers = ProducerSequence(access, queue, query["producer"]) if "producer" in query else None
            return PublishSession(target, login, self._settings, groups=groups, traffic=traffic, numbers=numbers)
        subscription = Subscription(
            queue,
            settles="ack" in query, confirms=confirms, limit=limit, encoding=encoding, group=group, traffic=traffic,
            leases=leases,
        )  # fmt: skip
        return ConsumeSession(subscription, login)

    def _of_several(self, request: SocketRequest, project: str) -> Session:
        if QueuesSession.subprotocol not in _offered(request):
            raise BadRequest("the WebSocket subprotocol for several queues must be queues")
        access = request.access
        ticket = parse_query(request.query).get("ticket")
        if ticket:
            access = self._authenticator.use_ticket(ticket, QueuesSession.subprotocol, None, request.caller)
        if not access.identity.user:
            raise NotLoggedIn(LOGIN_REQUIRED)
        connections = self._authenticator.connections
        connections.check(access)
        return QueuesSession(project, connections, access, request.caller, self._settings, self._traffic)

    def _to_event(
        self, request: SocketRequest, project: str, event: str, protocol: str, query: Mapping[str, str]
    ) -> Session:
        if protocol != PublishSession.subprotocol:
            raise BadRequest("an event can't be consumed from; bind a queue to it and consume from the queue")
        if query.get("confirm"):
            raise BadRequest("leave confirm out: each copy of a message to an event has its own id")
        if "producer" in query:
            raise BadRequest("leave producer out: only messages to a queue have numbers")
        access = request.access
        access.check_topic(Right.SEND, event, project)
        connections = self._authenticator.connections
        connections.check(access)
        login = SocketLogin(
            connections, access, request.caller, lambda now: now.check_topic(Right.SEND, event, project)
        )
        target = ToEvent(lambda: login.access, project, event, self._settings.max_message_size)
        groups = groups_of(query.get("groups", ""))
        return PublishSession(target, login, self._settings, groups=groups, traffic=self._traffic)


def _leases_of(query: Mapping[str, str], host: Host) -> SocketLeases | None:
    if "lease" not in query:
        return None
    if "ack" not in query or not _CONFIRMS.get(query.get("confirm", "")):
        raise BadRequest("lease needs ack and confirm=json")
    return SocketLeases(host, lease_ms(query["lease"]))


def _offered(request: SocketRequest) -> set[str]:
    return {name.strip() for name in request.header(b"sec-websocket-protocol").decode("latin-1").split(",")}


def _may_be_new(path: str, access: AuthorizedBroker) -> bool:
    """Return whether a path names a queue that another server may have just created."""
    match = _PATH.fullmatch(path)
    if match is None or match[2] == "events":
        return False
    try:
        return access.may_be_new(queue_name(match[3], match[1]))
    except BadRequest:  # `open` reports it
        return False


def _subprotocol(request: SocketRequest) -> str:
    """Return "publish" or "consume", whichever the client offers; other offers are ignored."""
    known = _offered(request) & {PublishSession.subprotocol, ConsumeSession.subprotocol}
    if len(known) != 1:
        raise BadRequest("the WebSocket subprotocol must be publish or consume")
    return known.pop()
