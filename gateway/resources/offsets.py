"""Where a queue begins and ends, for those who read it by position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.gateway.formats.parameters import SEQ_MAX, group_of, query_of, wait_ms, whole_number
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import Polls, answer, held_by
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.resources.queues import name_in

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.core.port import Queue

STAGED, STAGED_SHARE = "staged", 4


class Offsets:
    """The handler of `/v2/{project}/queues/{queue}/offsets`."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET: the first and the next seq; with `wait` and `after` once there is more, or the time is up."""
        queue = access_of(scope).queue(name_in(scope), Right.PEEK)
        query = query_of(scope)
        reading = queue.reading
        group = group_of(query)
        longest_ms = wait_ms(query.get("wait", 0))
        after = whole_number("after", query["after"], 0, SEQ_MAX) if "after" in query else None
        timestamp_ms = whole_number("timestamp", query["timestamp"], 0, SEQ_MAX) if "timestamp" in query else None
        if group:
            reading.position(group)  # it must be there
        held = held_by(access_of(scope), queue.name, Right.PEEK)
        if longest_ms and after is not None and reading.next <= after:
            await self._polls.poll(partial(reading.wait_for, after, longest_ms), receive, held)
        reply: dict[str, object] = {}
        if timestamp_ms is not None:
            _, reply["at"] = await answer(partial(reading.find_time, timestamp_ms))
        first = reading.position(group) if group else reading.first()
        floor = reading.floor(group) if group else first
        if "bytes" in query:
            reply |= _reach(queue, group, after or 0, _bytes_max(access_of(scope), query["bytes"]))
        await reply_json(send, {"epoch": queue.uid, "first": first, "next": reading.next, "floor": floor, **reply})


def _bytes_max(access: Access, text: str) -> int:
    """Return a number of bytes; `staged`: so many that a staged transaction of them leaves room for others."""
    if text == STAGED:
        return access.staging.bytes_max // STAGED_SHARE
    return whole_number("bytes", text, 1, SEQ_MAX)


def _reach(queue: Queue, group: str, first: int, bytes_max: int) -> dict[str, object]:
    found = queue.reading.stretch(group, first, bytes_max)
    return {"until": found.until, "bytes": found.size, "bytes_max": bytes_max}
