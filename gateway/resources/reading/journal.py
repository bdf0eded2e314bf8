"""A queue's journal over HTTP: the events of its messages, as far back as the log reaches."""

from __future__ import annotations

import struct
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.positions import KINDS, PUBLISHED, RELEASED, Event, ReadRequest
from curbstone.gateway.formats.parameters import POSITION_MAX, query_of, wait_ms, whole_number
from curbstone.gateway.http.answer_budget import wait_for_budget
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.limits import PAGE_BYTES_MAX, PAGE_MESSAGES_MAX
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.resources.reading.browse import NDJSON, PAGE_BYTES, accepts, checksum, page_headers

BINARY = "application/vnd.curbstone.journal"
LIMIT = 10_000

_EVENT = struct.Struct("<QQQIIBBHQ")


class Journal:
    """The handler of `/v2/{project}/queues/{queue}/journal`."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls

    async def get(self, request: Request) -> Response:
        """GET: a page of events. `Next-Offset` is where the next page begins, `Journal-End` where the last one ends."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        reading = queue.reading
        query = query_of(request)
        queue.reading.check_epoch(query.get("epoch"))
        position = whole_number("from", query.get("from", 0), 0, POSITION_MAX)
        limit = whole_number("limit", query.get("limit", LIMIT), 1, PAGE_MESSAGES_MAX)
        bytes_max = whole_number("max_bytes", query.get("max_bytes", PAGE_BYTES), 1, PAGE_BYTES_MAX)
        longest_ms = wait_ms(query.get("wait", 0))
        read = ReadRequest(position or reading.events_start, limit, bytes_max)
        held = held_by(access_of(request), queue.name, Right.PEEK)
        if longest_ms and read.position == reading.events_end:
            await self._polls.poll(partial(reading.wait_for_events, read.position, longest_ms), request.receive, held)
        await wait_for_budget(request, bytes_max)
        is_binary = accepts(request, BINARY)
        render = _binary if is_binary else _lines
        pieces: list[bytes]
        end = reading.events_end
        _, pieces, following = await answer(partial(reading.events, read, render))
        page = b"".join(pieces)
        headers = page_headers(queue, BINARY if is_binary else NDJSON, following)
        headers |= {"journal-end": str(max(end, following))} | (checksum(page) if is_binary else {})
        return Response(page, headers=headers)


def _binary(events: list[Event]) -> bytes:
    parts: list[bytes] = []
    pack = _EVENT.pack
    for position, kind, seq, span, time_ms, tries, group, value in events:
        name = group.encode()
        parts.append(pack(position, seq, time_ms, span, tries, kind, 0, len(name), value))
        parts.append(name)
    return b"".join(parts)


def _lines(events: list[Event]) -> bytes:
    return b"".join([orjson.dumps(event_json(event), option=orjson.OPT_APPEND_NEWLINE) for event in events])


def event_json(event: Event) -> dict[str, object]:
    """Return an event as a JSON object."""
    line: dict[str, object] = {"event": KINDS[event.kind], "seq": event.seq, "count": event.span, "time": event.time_ms}
    if event.kind == PUBLISHED:
        line["bytes"] = event.value
        if event.group:
            line["group"] = event.group
        return line
    line["group"] = event.group
    if event.kind == RELEASED:
        line["tries"] = event.tries
        if event.value:
            line["due"] = event.value
    return line
