"""Batches of messages over HTTP: the open batches and their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import NotSupported
from curbstone.core.values import Capability
from curbstone.gateway.formats.parameters import query_of
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.head import event_in
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.resources.queues.queues import Page, name_in

if TYPE_CHECKING:
    from curbstone.core.batches import OpenBatch
    from curbstone.core.names import QueueName
    from curbstone.core.port import Queue


class Batches:
    """The handlers of `/v2/{project}/queues/{queue}/batches` and `…/batches/{batch}`."""

    async def list(self, request: Request) -> Response:
        """GET: the open batches, by id; all, or a page."""
        found = sorted(_queue_in(request, Right.PEEK).batches(), key=_id)
        batches, following = Page.of(query_of(request)).cut(found, _id)
        return JsonResponse({"batches": [_json(each) for each in batches]} | following)

    async def get(self, request: Request) -> Response:
        """GET: one batch."""
        queue, batch = _queue_in(request, Right.PEEK), event_in(request.path_params["batch"])
        found = next((each for each in queue.batches() if _id(each) == batch), None)
        if found is None:
            raise _missing(queue.name, batch)
        return JsonResponse(_json(found))

    async def delete(self, request: Request) -> Response:
        """DELETE: forget a batch; its messages stay, and no report will be sent."""
        queue, batch = _queue_in(request, Right.MANAGE), event_in(request.path_params["batch"])
        _, was_there = await answer(lambda done: access_of(request).drop_batch(queue.name, batch, done))
        if not was_there:
            raise _missing(queue.name, batch)
        return Response(status_code=204)


def _queue_in(request: Request, right: Right) -> Queue:
    access = access_of(request)
    queue = access.queue(name_in(request), right)
    if Capability.BATCHES not in access.capabilities:
        raise NotSupported("Batches need the local engine.")
    return queue


def _id(batch: OpenBatch) -> str:
    return batch.tally.id


def _missing(queue: QueueName, batch: str) -> Problem:
    return Problem(404, f"queue {queue} has no open batch {batch[:80]!r}: it has ended, or there was none")


def _json(batch: OpenBatch) -> dict[str, object]:
    """Return a batch as JSON. Values that no message has set yet are left out."""
    tally = batch.tally
    members: dict[str, object] = {"batch": tally.id}
    if tally.size:
        members["size"] = tally.size
    if tally.to:
        members["to"] = tally.to
    members |= {"stored": tally.stored, "pending": tally.pending, **tally.ends, "begun_ms": tally.begun_ms}
    return members | {"refusal": batch.refusal} if batch.refusal else members
