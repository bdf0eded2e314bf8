"""Explains, in sentences for people, why a queue delivers nothing, or the state of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.caller import shown
from curbstone.access.rights import Right
from curbstone.core.batches import batch_of
from curbstone.core.orders import asked_name, priority_of, shown_name
from curbstone.core.values import LEAVING, Capability, ClientInfo, Counts, Holder, Peeked
from curbstone.gateway.formats.parameters import group_of, query_of
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.resources.messages.message import find_message
from curbstone.gateway.resources.queues.queues import name_in

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue

HOLDERS_MAX = 100
NAMED_MAX = 3
"""How many of the consumers that hold messages are named."""
GROUPS_MAX = 10
_SHOWN = ("protocol", "peer", "user", "client", "subscription")
PROTOCOLS = {
    **{"stomp": "STOMP", "stomp-websocket": "STOMP WebSocket", "websocket": "WebSocket", "mqks": "MQKS"},
    **{"http": "HTTP", "mq": "MQ", "sse": "SSE"},
}
"""The names of `Who.protocol` in sentences."""
READY_MAX = 10
"""How many ready messages are examined for others ahead with the same ordering key."""


class Explain:
    """The handler of `/v2/{project}/queues/{queue}/explain`."""

    async def get(self, request: Request) -> Response:
        """GET: sentences about the queue from a group's point of view, or about one message."""
        access = access_of(request)
        queue = access.queue(name_in(request), Right.PEEK)
        query = query_of(request)
        group = group_of(query)
        holders = queue.holders()
        explained: dict[str, object] = {"queue": str(queue.name), "group": group}
        if "id" in query:
            found = await find_message(queue, query["id"])
            held_by = shown(
                access.identity, queue.name, queue.holders(found.message.seq)[:HOLDERS_MAX] if found else ()
            )
            explained["sentences"] = [_about_message(queue, query["id"][:80], found, held_by)]
            explained["held_by"] = [_holder(each) for each in held_by]
        else:
            can_look = Capability.LOOKING in access.capabilities
            behind = await _held_back(queue, group) if can_look else []
            longest = shown(access.identity, queue.name, _longest(holders, group))
            explained["sentences"] = [*_about_server(access), *_about_queue(queue, group, holders, longest, behind)]
        explained["holders"] = [_holder(each) for each in shown(access.identity, queue.name, holders[:HOLDERS_MAX])]
        return JsonResponse(explained, 200, FRESH)


def _holder(holder: Holder) -> dict[str, object]:
    """Return a holder as JSON, without values that are unknown or that this client may not see."""
    found = holder._asdict()
    client_info: ClientInfo = found.pop("client_info")
    about = {**client_info._asdict(), "peer": client_info.peer}
    return found | {name: about[name] for name in _SHOWN if about[name]}


def _about_server(access: AuthorizedBroker) -> Iterator[str]:
    health = access.health()
    if not health.ok:
        yield f"The server is not healthy: {'; '.join(health.reasons[:3])}."


async def _held_back(queue: Queue, group: str) -> list[Peeked]:
    """Return the first ready messages if all of them wait behind others with the same key; else none."""
    (first,) = await answer(partial(queue.peek, READY_MAX, state="rdy", group=group))
    return first if all(each.behind for each in first) else []


def _longest(holders: list[Holder], group: str) -> list[Holder]:
    """Return the consumers of a group that hold messages, ordered by how long they have held their oldest message."""
    holding = [each for each in holders if each.kind == "consumer" and each.group == group and each.oldest_ms]
    return sorted(holding, key=lambda each: each.oldest_ms)[:NAMED_MAX]


def _about_queue(
    queue: Queue, group: str, holders: list[Holder], longest: list[Holder], behind: list[Peeked]
) -> Iterator[str]:
    counts, backlogs = queue.counts(group), queue.reading.backlogs()
    whose = f" for group {group}" if group else ""
    if queue.options.paused:
        yield "It is paused: nothing is delivered until its option paused is false."
    if queue.options.publish_paused:
        yield "It accepts no messages until its option publish_paused is false; its messages are still delivered."
    for text in queue.damaged[:3]:
        yield f"It is damaged: {text}."
    if group and not any(each.declared for each in backlogs if each.group == group):
        yield f"Group {group} is not declared: it gets only messages that are published for it."
    if counts.rdy:
        yield f"{_messages(counts.rdy)} ready{whose}."
        if behind and queue.options.are_keys_in_order:
            ahead = queue.message_id(behind[0].behind)
            if counts.rdy == 1:
                yield f"It waits behind message {ahead} of the same key, until that is settled."
            else:
                which = "They all wait" if len(behind) == counts.rdy else f"The first {len(behind)} of them wait"
                yield f"{which} behind others of their keys that are not settled, the first behind message {ahead}."
        yield from _about_limits(queue, counts, is_behind=bool(behind))
        can_be_had = not behind and not queue.options.paused and counts.held_back < counts.rdy
        priorities = queue.by_priority(group)
        yield from _about_priorities(queue, priorities)
        takers = [holder for holder in holders if holder.group == group]
        yield from _about_takers(group, takers, can_be_had, has_priorities=len(priorities) > 1)
    elif not counts.wip and not counts.delayed:
        yield f"It has no messages{whose}."
    if counts.wip:
        yield f"{_messages(counts.wip)} delivered and not settled."
    for each in longest:
        held = f"{each.unsettled} of them, the oldest" if each.unsettled > 1 else "one of them"
        yield f"A consumer{_whose(each.client_info)} has held {held} since {_time(each.oldest_ms)}."
    leases = [holder for holder in holders if holder.kind == "leases" and holder.group == group]
    if leases:
        count, when = sum(each.unsettled for each in leases), _time(min(each.until_ms for each in leases))
        yield f"Of these {count} {_is(count)} leased; the first returns at {when}."
    others = [backlog for backlog in backlogs if backlog.group != group and backlog.rdy]
    for backlog in others[:GROUPS_MAX]:
        note = "" if backlog.declared else ", which is not declared: only its own consumers get them"
        yield f"{_messages(backlog.rdy)} ready for group {backlog.group}{note}."
    if not group:
        yield from _about_batches(queue)
    yield from _about_room(queue, counts.bytes)
    if queue.stats.overflowed:
        yield f"Since the start it has dropped {_count(queue.stats.overflowed)} to make room for newer ones."
    if queue.stats.filtered:
        none = "" if queue.stats.published else ", and none has matched"
        yield f"Since the start the filters of its bindings have excluded {_count(queue.stats.filtered)}{none}."
    if queue.stats.duplicates == 1:
        yield "Since the start one message was not stored, because another one had its unique name."
    elif queue.stats.duplicates:
        count = queue.stats.duplicates
        yield f"Since the start {count} messages were not stored, because others had their unique names."
    if count := queue.stats.replaced:
        yield f"Since the start {count} message{'s' * (count != 1)} that waited {_was(count)} replaced by later ones."
    if counts.delayed:
        yield f"{_messages(counts.delayed)} delayed; the first is due at {_time(counts.first_due_ms)}."


def _about_limits(queue: Queue, counts: Counts, *, is_behind: bool) -> Iterator[str]:
    if queue.options.fair:
        yield "The option fair selects the next one: it has the key with the fewest messages in flight."
    if not counts.held_back:
        return
    if counts.limited_by == "keys":
        yield from _about_keys(queue, counts, is_behind=is_behind)
        return
    which = "It is" if counts.rdy == 1 else f"{counts.held_back} of them {_is(counts.held_back)}"
    if counts.limited_by == "in_flight":
        most = queue.options.in_flight
        yield f"{which} held back: the option in_flight allows {most} in flight."
    else:
        rate = f"{queue.options.rate:g} deliver{'y' if queue.options.rate == 1 else 'ies'} a second"
        then = f"; the next one is at {_time(counts.next_ms)}" if counts.next_ms else ""
        yield f"{which} held back: the option rate allows {rate}{then}."


def _about_keys(queue: Queue, counts: Counts, *, is_behind: bool) -> Iterator[str]:
    options = queue.options
    allowed = []
    if options.key_limit > 1:
        allowed.append(f"{options.key_limit} of a key in flight (key_limit)")
    if options.key_rate:
        rate = f"{options.key_rate:g} deliver{'y' if options.key_rate == 1 else 'ies'} of a key a second (key_rate)"
        allowed.append(rate)
    if allowed and not (is_behind and options.are_keys_in_order):
        which = "It is" if counts.rdy == 1 else "They all are"
        then = f"; the next one may be at {_time(counts.next_ms)}" if counts.next_ms else ""
        yield f"{which} held back: the options allow {' and '.join(allowed)}{then}."


def _about_priorities(queue: Queue, counts: Mapping[int, int]) -> Iterator[str]:
    if len(counts) < 2:
        return
    highest = max(counts)
    lower = sum(counts.values()) - counts[highest]
    yield (
        f"{counts[highest]} of its {lower + counts[highest]} messages have priority {highest} and go first;"
        f" the others have {min(counts)} to {max(set(counts) - {highest})}."
    )
    every = queue.options.oldest_every
    if every:
        yield f"One of {every} deliveries goes to the oldest message, whatever its priority."
    else:
        yield "They wait while those are ready, unless the option oldest_every is set."


def _about_room(queue: Queue, held: int) -> Iterator[str]:
    space, cap = queue.space(), queue.options.cap
    most = f"the largest message that fits now is {_bytes(space.available)}" if space.available else "none fits now"
    if space.refused_last_minute:
        count = space.refused_last_minute
        yield f"It refused {count} message{'s' if count != 1 else ''} in the last minute; {most}."
    elif not space.available and not queue.options.publish_paused:
        yield "No message fits now."
    # If none fits in a queue that is far from full, the cap is not the cause: the disk is full, or the queue is paused.
    if (space.refused_last_minute and space.available) or held > 0.9 * (cap - space.reserved):
        then = "it drops its oldest messages" if queue.options.drops_oldest else "it refuses messages"
        kept = f"{_bytes(space.reserved)} are reserved for acks, requeued messages and compaction"
        yield f"It takes {_bytes(held)} of its cap of {_bytes(cap)}, and {kept}; when it is full, {then}."


def _bytes(size: int) -> str:
    """Return a size for people; small sizes are exact."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= 10 * unit or size % unit == 0 < size:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"


def _about_takers(group: str, holders: list[Holder], can_be_had: bool, *, has_priorities: bool) -> Iterator[str]:
    consumers = [holder for holder in holders if holder.kind == "consumer" and holder.state != LEAVING]
    states = [holder.state for holder in consumers]
    if not consumers:
        yield f"No consumer is connected{f' for group {group}' if group else ''}."
        return
    if ready := states.count("ready"):
        who, is_one = _of(ready, len(states))
        then = f": {'it gets' if is_one else 'they get'} them now" if can_be_had else ""
        yield f"{who} {'has' if is_one else 'have'} room{then}."
    if full := states.count("full"):
        who, is_one = _of(full, len(states))
        most = (
            "holds as many messages as its window allows" if is_one else "hold as many messages as their windows allow"
        )
        yield f"{who} {most}, and must settle some."
        if has_priorities:
            holds = "it holds" if is_one else "they hold"
            yield f"A higher priority does not overtake the messages that {holds}; a smaller window shortens the wait."
    if held := states.count("held"):
        who, is_one = _of(held, len(states))
        yield f"{who} {'does' if is_one else 'do'} not read the sent messages."


def _of(count: int, total: int) -> tuple[str, bool]:
    """Return `count` of all consumers as the subject of a sentence, and whether its verb is singular."""
    return ("Its only consumer" if total == 1 else f"{count} of {total} consumers"), count == 1


def _about_message(queue: Queue, message_id: str, found: Peeked | None, held_by: list[Holder]) -> str:
    if found is None:
        return f"Message {message_id} is not in this queue: it was settled, has expired, or never existed."
    times = "once" if found.tries == 1 else f"{found.tries} times"
    tries = f" It was delivered {times} before." if found.tries else ""
    ready = "is ready: it is delivered after the messages before it, as soon as a consumer has room."
    if found.message.level:
        priority = priority_of(found.message.level)
        ready = f"is ready, with priority {priority}: messages of higher priority and earlier ones are delivered first."
    if queue.options.fair:
        ready = "is ready: it is delivered when its key has the fewest messages in flight."
    if found.behind and not queue.options.are_keys_in_order:
        most = queue.options.key_limit
        ready = f"waits: {most} of its key are in flight, as many as the option key_limit allows."
    elif found.behind:
        ready = f"waits behind message {queue.message_id(found.behind)} of the same key, until that is settled."
    states = {
        "rdy": ready,
        "wip": "was delivered and is not settled.",
        "delayed": f"is delayed until {_time(found.due_ms)}.",
    }
    held = "".join(f" {_about_holder(each)}" for each in held_by)
    return f"Message {message_id} {states[found.state]}{held}{tries}{_about_name(found)}{_about_batch(found)}"


def _about_batches(queue: Queue) -> Iterator[str]:
    batches = queue.batches()
    if not batches:
        return
    first = min([each.tally for each in batches], key=lambda tally: tally.begun_ms)
    of_size = f"{first.stored} of its {first.size} messages" if first.size else _count(first.stored)
    has = f"has {of_size}, of which {first.pending} {_is(first.pending)} not settled"
    if len(batches) == 1:
        yield f"Batch {first.id!r} has not ended: it {has}."
    else:
        yield f"{len(batches)} batches have not ended; the first of them, {first.id!r}, {has}."
    refused = [each for each in batches if each.refusal]
    for each in refused[:1]:
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        yield f"The report of batch {each.tally.id!r}{more} waits, because it was refused: {each.refusal}."


def _about_batch(found: Peeked) -> str:
    """Return a sentence about the batch of a message."""
    orders = found.message.orders
    return f" It is of batch {batch_of(found.message.headers).id!r}." if orders is not None and orders.batched else ""


def _about_name(found: Peeked) -> str:
    """Return a sentence about the effect of a message's name, if it has one."""
    if found.message.orders is None or not found.message.orders.named:
        return ""
    (_, until_delivered, replaces, _), (_, name) = asked_name(found.message.headers), shown_name(found.message.headers)
    if replaces:
        return f" A later message named {name!r} replaces it if it still waits then."
    until = "it was delivered once in each group" if until_delivered else "it is settled in every group"
    return f" Until {until}, no other message named {name!r} is stored."


def _about_holder(holder: Holder) -> str:
    """Return a sentence about who holds a message, and since when; the holder is of this message alone."""
    group = f" for group {holder.group}" if holder.group else ""
    kind = "consumer" if holder.kind == "consumer" else "client with a lease"
    until = f", and has it until {_time(holder.until_ms)}" if holder.until_ms else ""
    return f"A {kind}{_whose(holder.client_info)} has held it{group} since {_time(holder.oldest_ms)}{until}."


def _whose(client_info: ClientInfo) -> str:
    """Return a description of a client, to follow its noun in a sentence."""
    names = [
        f"{what} {name}"
        for what, name in (("user", client_info.user), ("client", client_info.client), ("id", client_info.subscription))
        if name
    ]
    known = [*([f"at {client_info.peer}"] if client_info.peer else []), *names]
    over = f" over {PROTOCOLS.get(client_info.protocol, client_info.protocol)}" if client_info.protocol else ""
    return over + (f" ({', '.join(known)})" if known else "")


def _count(count: int) -> str:
    return f"{count} message{'s' if count != 1 else ''}"


def _messages(count: int) -> str:
    return f"{_count(count)} {_is(count)}"


def _is(count: int) -> str:
    return "are" if count != 1 else "is"


def _was(count: int) -> str:
    return "were" if count != 1 else "was"


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
