"""The history of one message, read from the queue's log, as far back as the log reaches.

The log has no extra records for it. So the history shows when the message was published, requeued and ended, and the
queues that it was moved from and to, but neither its first delivery nor its consumers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import Gone
from curbstone.core.positions import Event, ReadRequest
from curbstone.gateway.formats.parameters import POSITION_MAX, query_of, whole_number
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.resources.messages.message import find_message, missing
from curbstone.gateway.resources.queues.moves import Moves
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.resources.reading.journal import event_json

if TYPE_CHECKING:
    from curbstone.core.values import Peeked

EVENTS_AT_ONCE = 20_000
EVENTS_MAX = 1_000_000
"""How many events one call examines. If there are more, the reply says where to continue."""
FOUND_BYTES_MAX = 1024 * 1024


class History:
    """The handler of `/v2/{project}/queues/{queue}/messages/{id}/history`."""

    async def get(self, request: Request) -> Response:
        """GET: the message's events in order, and its state now."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        reading = queue.reading
        message_id = request.path_params["id"]
        seq = queue.parse_id(message_id)
        if not seq or seq >= reading.next:
            raise missing(queue, message_id)
        start = whole_number("from", query_of(request).get("from", 0), 0, POSITION_MAX)
        position = min(max(start, reading.events_start), reading.events_end)
        found: list[bytes] = []
        for _ in range(EVENTS_MAX // EVENTS_AT_ONCE):
            read = ReadRequest(position, EVENTS_AT_ONCE, FOUND_BYTES_MAX)
            try:
                _, pieces, position = await answer(partial(reading.events, read, partial(_about, seq)))
            except Gone:  # the log was cleaned meanwhile; the events found stay
                position = reading.events_start
                continue
            found += pieces
            if position >= reading.events_end:
                break
        now = await find_message(queue, message_id)
        events = [orjson.loads(line) for line in b"".join(found).splitlines()]
        is_whole = not start and position >= reading.events_end
        await _add_moves(Moves(access_of(request), queue, seq), message_id, events, now, is_whole=is_whole)
        history = {"id": message_id, "state": now.state if now else "gone", "events": events}
        if position < reading.events_end:
            history["next"] = position
        return JsonResponse(history)


def _about(seq: int, events: list[Event]) -> bytes:
    """Return the events of a message as lines of JSON."""
    lines = [event_json(event) for event in events if event.seq <= seq < event.seq + event.span]
    for line in lines:
        del line["seq"], line["count"]
    return b"".join([orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines])


DEATHS = {"rejected": "rejected", "max_tries": "dead", "expired": "expired"}
"""The event for each reason of a death."""


async def _add_moves(
    moves: Moves, message_id: str, events: list[dict[str, Any]], now: Peeked | None, *, is_whole: bool
) -> None:
    """Add the moves of the message to its events.

    If `events` are all that the log has, also add the events that only the message or its dead letter records.
    """
    source, target = await moves.find(now.message.headers if now else None)
    if is_whole and now is not None and not any(event["event"] == "published" for event in events):
        message = now.message
        events.insert(0, {"event": "published", "time": message.timestamp_ms, "bytes": len(message.body)})
    for event in events:
        if event["event"] == "published" and source is not None:
            event["from"] = source
        elif event["event"] == "settled" and target is not None:
            event["to"] = target
    deaths = [event for event in events if event["event"] in DEATHS.values()]
    dead_letters = await moves.dead_letters(message_id) if deaths or now is None else []
    if is_whole and not deaths:
        deaths = [{"event": DEATHS[dead_letter["reason"]], "time": dead_letter["time"]} for dead_letter in dead_letters]
        events += deaths
    for event, dead_letter in zip(deaths, dead_letters, strict=False):
        event |= {name: dead_letter[name] for name in ("reason", "tries", "error", "to") if name in dead_letter}
