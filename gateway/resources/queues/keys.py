"""The ordering keys of a queue, with the most messages waiting or in flight first."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.values import KeyCounts
from curbstone.gateway.formats.parameters import group_of, query_of, whole_number
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.resources.queues.queues import name_in

LIMIT_MAX = 1000
WAITING, IN_FLIGHT = "waiting", "in_flight"


class Keys:
    """The handler of `/v2/{project}/queues/{queue}/keys`."""

    async def get(self, request: Request) -> Response:
        """GET: the number of keys in a group, and the first of them with their counts."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        group = group_of(query)
        limit = whole_number("limit", query.get("limit", 20), 1, LIMIT_MAX)
        by = query.get("by", WAITING)
        if by not in (WAITING, IN_FLIGHT):
            raise BadRequest(f"bad by {by[:80]!r}: {WAITING} or {IN_FLIGHT}")
        (found,) = await answer(partial(queue.keys, limit, by_in_flight=by == IN_FLIGHT, group=group))
        keys = [_json(counts) for counts in found.first]
        return JsonResponse({"queue": str(queue.name), "group": group, "total": found.total, "keys": keys}, 200, FRESH)


def _json(counts: KeyCounts) -> dict[str, object]:
    fields = counts._asdict()
    if not counts.next_ms:
        del fields["next_ms"]
    return fields
