"""The WebSockets of queues and events: which session a request gets, or why it gets none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from curbstone.core.errors import BadRequest
from curbstone.core.masks import published_event
from curbstone.core.names import queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.parameters import (
    LIMIT_MAX,
    encoding_of,
    group_of,
    groups_of,
    parse_query,
    whole_number,
)
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.consume_session import ConsumeSession
from curbstone.gateway.websocket.publish_session import PublishSession
from curbstone.gateway.websocket.session import Opener, Session, SocketRequest
from curbstone.gateway.websocket.targets import ToEvent, ToQueue

if TYPE_CHECKING:
    from curbstone.core.port import Broker

_PATH = re.compile(r"/v2/([^/]+)/(queues|events)/([^/]+)(?:/messages)?")
_CONFIRMS = {"": False, "empty": False, "json": True}


class WebSocketRoutes:
    """Opens sessions for `…/queues/{queue}/messages` and `…/events/{event}/messages` of a project.

    At the paths in `others` those of other protocols are opened.
    """

    def __init__(
        self,
        broker: Broker,
        settings: GatewaySettings,
        guard: OriginPolicy,
        traffic: Traffic,
        others: Mapping[str, Opener] | None = None,
    ) -> None:
        self._traffic = traffic
        self._broker = broker
        self._settings = settings
        self._guard = guard
        self._others = dict(others or {})

    def open(self, request: SocketRequest) -> Session:
        """Return the session for a request; raise Problem or CurbstoneError to refuse it."""
        host = request.header(b"host")
        self._guard.check_host(host)
        self._guard.check_socket_origin(request.header(b"origin"), host)
        other = self._others.get(request.path)
        if other is not None:
            return other(request)
        match = _PATH.fullmatch(request.path)
        if match is None:
            raise Problem(404, "there is no WebSocket at this path")
        project, kind, named = unquote(match[1]), match[2], unquote(match[3])
        protocol = _subprotocol(request)
        query = parse_query(request.query)
        if kind == "events":
            return self._to_event(queue_name("any", project).project, published_event(named), protocol, query)
        name = queue_name(named, project)
        limit = whole_number("limit", query.get("limit", self._settings.default_limit), 1, LIMIT_MAX)
        encoding = encoding_of(query)
        group = group_of(query)
        groups = groups_of(query.get("groups", ""))
        confirm_ids = _CONFIRMS.get(query.get("confirm", ""))
        if confirm_ids is None:
            raise BadRequest(f"bad confirm {query['confirm'][:80]!r}: json, or leave it out")
        queue = self._broker.get(name)
        traffic = self._traffic
        if protocol == PublishSession.subprotocol:
            target = ToQueue(queue, confirm_ids=confirm_ids)
            return PublishSession(target, self._settings, groups=groups, traffic=traffic)
        return ConsumeSession(
            queue, settles="ack" in query, limit=limit, encoding=encoding, group=group, traffic=traffic
        )

    def _to_event(self, project: str, event: str, protocol: str, query: Mapping[str, str]) -> Session:
        if protocol != PublishSession.subprotocol:
            raise BadRequest("an event is published to; to consume, bind a queue to it and consume from that")
        if query.get("confirm"):
            raise BadRequest("the copies of a message to an event have an id each: leave confirm out")
        target = ToEvent(self._broker, project, event, self._settings.max_message_size)
        groups = groups_of(query.get("groups", ""))
        return PublishSession(target, self._settings, groups=groups, traffic=self._traffic)


def _subprotocol(request: SocketRequest) -> str:
    """Return "publish" or "consume", whichever one the client offers; others beside it do not matter."""
    offered = {name.strip() for name in request.header(b"sec-websocket-protocol").decode("latin-1").split(",")}
    known = offered & {PublishSession.subprotocol, ConsumeSession.subprotocol}
    if len(known) != 1:
        raise BadRequest("the WebSocket subprotocol must be publish or consume")
    return known.pop()
