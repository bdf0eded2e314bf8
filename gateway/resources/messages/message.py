"""One message by its id, in any state: peek at it, or cancel it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.values import Peeked
from curbstone.gateway.formats.parameters import encoding_of, query_of
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.resources.messages.messages import peeked_json
from curbstone.gateway.resources.queues.queues import name_in

if TYPE_CHECKING:
    from curbstone.core.port import Queue


async def find_message(queue: Queue, message_id: str) -> Peeked | None:
    """Return the message with this id and its current state, or None if the queue does not have it."""
    seq = queue.parse_id(message_id)
    if not seq:
        return None
    (found,) = await answer(partial(queue.peek, 1, after=seq - 1))
    return found[0] if found and found[0].message.seq == seq else None


class OneMessage:
    """The handlers of `/v2/{project}/queues/{queue}/messages/{id}`."""

    async def get(self, request: Request) -> Response:
        """GET: the message and its current state, without taking it."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        encoding = encoding_of(query_of(request))
        found = await find_message(queue, request.path_params["id"])
        if found is None:
            raise missing(queue, request.path_params["id"])
        return JsonResponse(peeked_json(queue, found, encoding))

    async def delete(self, request: Request) -> Response:
        """DELETE: settle the message for consumers without a group, even if it is delayed or in flight."""
        queue = access_of(request).queue(name_in(request), Right.RECEIVE)
        seq = queue.parse_id(request.path_params["id"])
        if not seq:
            raise missing(queue, request.path_params["id"])
        _, was_there = await answer(lambda done: access_of(request).settle_by_id(queue, seq, done))
        if not was_there:
            raise missing(queue, request.path_params["id"])
        return Response(status_code=204)


def missing(queue: Queue, message_id: str) -> Problem:
    """Return the problem for an id that no message in the queue has."""
    return Problem(
        404, f"there is no message {message_id[:80]!r} in queue {queue.name}: it was settled, or never there"
    )
