"""Events over HTTP: their bound queues, and publishing to all of these queues.

An event belongs to a project, and so do the queues bound to it. It is never created: it exists as long as a queue is
bound to it. A message that is published while no queue is bound is stored nowhere, and the reply says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.masks import published_event
from curbstone.core.names import event_name, queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.idempotency import HEADER
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.head import event_in
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse, reply_json
from curbstone.gateway.http.typed_body import Body, OptionalText, read_typed
from curbstone.gateway.resources.messages.publishing import read_batch, read_message
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings


class Binding(Body):
    """The body of a request to bind a queue."""

    what = "a binding"
    may_be_null = ("filter",)

    filter: OptionalText = None


class Events:
    """The handlers of `/v2/{project}/events…`."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def list(self, request: Request) -> Response:
        """GET: the events of a project, the queues bound to each, by name, and the filters of those that have one."""
        project = queue_name("any", request.path_params["project"]).project
        access = access_of(request)
        bound: dict[str, dict[str, str]] = {}
        for queue in access.queues():
            if queue.name.project == project:
                for event, text in access.bindings(queue.name).items():
                    bound.setdefault(event, {})[queue.name.queue] = text
        return JsonResponse({"events": [_event_json(event, bound[event]) for event in sorted(bound)]})

    async def bind(self, request: Request) -> Response:
        """PUT: bind an existing queue to an event, or to all that a mask matches, with the filter in the body."""
        name = name_in(request)
        event = event_name(event_in(request.path_params["event"]))
        access_of(request).queue(name, Right.MANAGE)
        wanted = await read_typed(request, request.receive, self._settings.json_bytes_max, Binding)
        await answer(lambda done: access_of(request).bind(event, name, done, wanted.filter or ""))
        return Response(status_code=201)

    async def unbind(self, request: Request) -> Response:
        """DELETE: undo `bind`; the same reply if it was not bound."""
        name = name_in(request)
        event = event_name(event_in(request.path_params["event"]))
        await answer(lambda done: access_of(request).unbind(event, name, done))
        return Response(status_code=204)

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST messages: every bound queue gets a copy, or refuses it according to its own options."""
        project, event = self._event(scope)
        message = await read_message(scope, receive, self._settings, self._settings.max_message_size)
        self._traffic.published += 1
        _, count, _ = await answer(lambda done: access_of(scope).publish_event(event, [message], done, project))
        self._traffic.confirmed += 1
        await reply_json(send, {"queues": count}, 201)

    async def post_batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST messages/batch: every bound queue gets all of them, or no queue gets any."""
        project, event = self._event(scope)
        messages = await read_batch(scope, receive, self._settings, self._settings.max_message_size)
        self._traffic.published += len(messages)
        transaction = access_of(scope).transaction()
        for message in messages:
            transaction.publish_event(event, message, project)
        await answer(transaction.commit)
        self._traffic.confirmed += len(messages)
        await reply_json(send, {"queues": transaction.queues_reached, "messages": len(messages)}, 201)

    def _event(self, scope: Scope) -> tuple[str, str]:
        """Return the project and the event that is published to; raise BadRequest for a mask or an idempotency key."""
        path = scope["path_params"]
        if HEADER in scope["fields"].named:
            raise BadRequest("an Idempotency-Key works only for a queue; leave it out for an event")
        project, event = queue_name("any", path["project"]).project, published_event(event_in(path["event"]))
        access_of(scope).check_topic(Right.SEND, event, project)
        return project, event


def _event_json(event: str, bound: Mapping[str, str]) -> dict[str, object]:
    """Return an event and the queues bound to it, each with its filter, as JSON."""
    found: dict[str, object] = {"event": event, "queues": sorted(bound)}
    if filters := {queue: text for queue, text in sorted(bound.items()) if text}:
        found["filters"] = filters
    return found
