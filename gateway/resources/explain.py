"""Explains, in sentences for people, why a queue delivers nothing, or what became of a message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.values import Capability, Holder, Peeked
from curbstone.gateway.formats.parameters import group_of, query_of
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.response import JsonResponse
from curbstone.gateway.resources.message import look_at
from curbstone.gateway.resources.queues import name_in

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.core.port import Queue

HOLDERS_MAX = 100
GROUPS_MAX = 10
READY_MAX = 10
"""How many ready messages are examined, to see whether they wait behind others with their ordering keys."""


class Explain:
    """The handler of `/v2/{project}/queues/{queue}/explain`."""

    async def get(self, request: Request) -> Response:
        """GET: sentences about the queue as a group sees it, or about the message with an id."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        group = group_of(query)
        holders = queue.holders()
        if "id" in query:
            found = await look_at(queue, query["id"])
            sentences = [_about_message(queue, query["id"][:80], found)]
        else:
            can_look = Capability.LOOKING in access_of(request).capabilities
            behind = await _held_back(queue, group) if can_look else []
            sentences = [*_about_server(access_of(request)), *_about_queue(queue, group, holders, behind)]
        shown = [holder._asdict() for holder in holders[:HOLDERS_MAX]]
        return JsonResponse({"queue": str(queue.name), "group": group, "sentences": sentences, "holders": shown})


def _about_server(access: Access) -> Iterator[str]:
    health = access.health()
    if not health.ok:
        yield "The server has trouble" + "".join(f"; {reason}" for reason in health.reasons[:3]) + "."


async def _held_back(queue: Queue, group: str) -> list[Peeked]:
    """Return the first ready messages if all of them wait behind others with the same key; else none."""
    (first,) = await answer(partial(queue.peek, READY_MAX, state="rdy", group=group))
    return first if all(each.behind for each in first) else []


def _about_queue(queue: Queue, group: str, holders: list[Holder], behind: list[Peeked]) -> Iterator[str]:
    counts = queue.counts(group)
    whose = f" for group {group}" if group else ""
    if queue.options.paused:
        yield "It is paused: nothing is delivered until its option paused is false."
    if queue.options.publish_paused:
        yield "It takes no messages until its option publish_paused is false; what it holds is delivered."
    for text in queue.damaged[:3]:
        yield f"It is damaged: {text}."
    if counts.rdy:
        yield f"{_messages(counts.rdy)} ready{whose}."
        if behind:
            ahead = queue.message_id(behind[0].behind)
            if counts.rdy == 1:
                yield f"It waits behind message {ahead} of the same key, until that is settled."
            else:
                which = "They all wait" if len(behind) == counts.rdy else f"The first {len(behind)} of them wait"
                yield f"{which} behind others of their keys that are not settled, the first behind message {ahead}."
        yield from _about_takers(group, [holder for holder in holders if holder.group == group], not behind)
    elif not counts.wip and not counts.delayed:
        yield f"Nothing waits in it{whose}."
    if counts.wip:
        yield f"{_messages(counts.wip)} delivered and not settled."
    for holder in holders:
        if holder.kind == "leases" and holder.group == group:
            when = _time(holder.until_ms)
            yield f"Of these {holder.unsettled} {_is(holder.unsettled)} leased; the first comes back at {when}."
    others = [backlog for backlog in queue.reading.backlogs() if backlog.group != group and backlog.rdy]
    for backlog in others[:GROUPS_MAX]:
        note = "" if backlog.declared else ", which is not declared: only who names it gets them"
        yield f"{_messages(backlog.rdy)} ready for group {backlog.group}{note}."
    if counts.bytes > 0.9 * queue.options.cap:
        then = "the oldest messages give way" if queue.options.drops_oldest else "it refuses messages"
        yield f"It takes {counts.bytes} bytes of its cap of {queue.options.cap}; when it is full {then}."
    if queue.stats.overflowed:
        yield f"Since the start {_messages(queue.stats.overflowed)} gone that gave way to newer ones."
    if counts.delayed:
        yield f"{_messages(counts.delayed)} delayed; the first is due at {_time(counts.first_due_ms)}."


def _about_takers(group: str, holders: list[Holder], can_be_had: bool) -> Iterator[str]:
    consumers = [holder for holder in holders if holder.kind == "consumer"]
    states = [holder.state for holder in consumers]
    if not consumers:
        yield "Nobody consumes from it" + (f" as group {group}." if group else ".")
        return
    if "ready" in states:
        then = ": they get them now" if can_be_had else ""
        yield f"{states.count('ready')} of {len(states)} consumers have room{then}."
    if full := states.count("full"):
        yield f"{full} of {len(states)} consumers hold as many messages as their windows allow, and must settle some."
    if held := states.count("held"):
        yield f"{held} of {len(states)} consumers do not read what was sent to them."


def _about_message(queue: Queue, message_id: str, found: Peeked | None) -> str:
    if found is None:
        return f"Message {message_id} is not in this queue: it was settled, has expired, or never was there."
    times = "once" if found.tries == 1 else f"{found.tries} times"
    tries = f" It was delivered {times} before." if found.tries else ""
    ready = "is ready: it is delivered when those before it are and somebody has room."
    if found.behind:
        ready = f"waits behind message {queue.message_id(found.behind)} of the same key, until that is settled."
    states = {
        "rdy": ready,
        "wip": "was delivered and is not settled.",
        "delayed": f"is delayed until {_time(found.due_ms)}.",
    }
    return f"Message {message_id} {states[found.state]}{tries}"


def _messages(count: int) -> str:
    return f"{count} message{'s' if count != 1 else ''} {_is(count)}"


def _is(count: int) -> str:
    return "are" if count != 1 else "is"


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
