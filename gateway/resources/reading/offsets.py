"""The first and the next seq of a queue, for clients that read by position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.gateway.formats.parameters import SEQ_MAX, group_of, query_of, wait_ms, whole_number
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.resources.queues.queues import name_in

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue

STAGED, STAGED_SHARE = "staged", 4


class Offsets:
    """The handler of `/v2/{project}/queues/{queue}/offsets`."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls

    async def get(self, request: Request) -> Response:
        """GET: the first seq and the next one. With `wait` and `after`, wait until there is a message after `after`."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        reading = queue.reading
        group = group_of(query)
        longest_ms = wait_ms(query.get("wait", 0))
        after = whole_number("after", query["after"], 0, SEQ_MAX) if "after" in query else None
        timestamp_ms = whole_number("timestamp", query["timestamp"], 0, SEQ_MAX) if "timestamp" in query else None
        if group:
            reading.position(group)  # raises if there is no such group
        held = held_by(access_of(request), queue.name, Right.PEEK)
        if longest_ms and after is not None and reading.next <= after:
            await self._polls.poll(partial(reading.wait_for, after, longest_ms), request.receive, held)
        reply: dict[str, object] = {}
        if timestamp_ms is not None:
            _, reply["at"] = await answer(partial(reading.find_time, timestamp_ms))
        bytes_max = byte_limit(access_of(request), query["bytes"]) if "bytes" in query else None
        return JsonResponse(offsets_json(queue, group, after or 0, bytes_max) | reply)


def byte_limit(access: AuthorizedBroker, given: object) -> int:
    """Return a number of bytes. `staged` stands for a size of transaction that leaves staging room for others."""
    if given == STAGED:
        return access.staging.bytes_max // STAGED_SHARE
    return whole_number("bytes", given, 1, SEQ_MAX)


def offsets_json(queue: Queue, group: str, after: int, bytes_max: int | None) -> dict[str, object]:
    """Return the first and next seq of a queue or a group, and how far `bytes_max` bytes reach from `after` on."""
    reading = queue.reading
    first = reading.position(group) if group else reading.first()
    floor = reading.floor(group) if group else first
    members: dict[str, object] = {"epoch": queue.uid, "first": first, "next": reading.next, "floor": floor}
    if bytes_max is not None:
        found = reading.stretch(group, after, bytes_max)
        members |= {"until": found.until, "bytes": found.size, "bytes_max": bytes_max}
    return members
