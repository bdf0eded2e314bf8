"""Messages over HTTP: publish, pop, peek, stream. Publish and pop are the hot paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import orjson
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.message import Delivery
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats.message_json import Encoding, body_json, metadata_json
from curbstone.gateway.formats.metadata import http_headers
from curbstone.gateway.formats.parameters import (
    encoding_of,
    group_of,
    lease_ms,
    query_of,
    refuse_filter,
    wait_ms,
    whole_number,
)
from curbstone.gateway.http.answer_budget import wait_for_budget, within_budget
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.client_disconnect import is_wanted
from curbstone.gateway.http.login import access_of, wants_stream
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.problem import ClientGone
from curbstone.gateway.http.responses import OPAQUE, reply, reply_json
from curbstone.gateway.limits import COUNT_MAX, PEEK_BYTES_MAX
from curbstone.gateway.resources.messages.event_stream import EventStream, EventStreams
from curbstone.gateway.resources.messages.leases import Leases
from curbstone.gateway.resources.messages.publishing import publish, read_message
from curbstone.gateway.resources.messages.searching import after_in, filter_in, progress_json, search_through, searcher
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.core.values import Peeked

STATES = ("rdy", "wip", "delayed")

_TRUE_FALSE = (b"false", b"true")


class Messages:
    """The handlers of `/v2/{project}/queues/{queue}/messages`."""

    def __init__(
        self,
        settings: GatewaySettings,
        origins: OriginPolicy,
        polls: Polls,
        streams: EventStreams,
        leases: Leases,
        traffic: Traffic,
    ) -> None:
        self._leases = leases
        self._origins = origins
        self._settings = settings
        self._polls = polls
        self._streams = streams
        self._traffic = traffic

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish the body; answered after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.SEND)
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        message = await read_message(scope, receive, self._settings, bytes_max)
        self._traffic.published += 1
        stored = await publish(queue, scope, [message], atomic=False)
        self._traffic.confirmed += 1
        fields = stored.headers
        if stored.ids:
            fields.append((b"x-msg-id", stored.ids[0].encode()))
        await reply(send, 201, fields)

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE: take one message. It is settled when the reply is sent, and only if the client is still connected."""
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        query = query_of(scope)
        refuse_filter(query)
        group = group_of(query) if query else ""
        longest_ms = wait_ms(query.get("wait", 0)) if query else 0
        wanted = is_wanted(scope)
        await wait_for_budget(scope)
        if "confirm" in query:
            await self._safe_pop(queue, query, group, longest_ms, scope, receive, send)
            return
        if longest_ms:
            delivery: Delivery | None = await self._polls.poll(
                lambda done: queue.pop(done, group=group, wait_ms=longest_ms, is_wanted=wanted),
                receive,
                within_budget(scope, held_by(access_of(scope), queue.name)),
            )
        else:
            (delivery,) = await answer(lambda done: queue.pop(done, group=group, is_wanted=wanted))
        if not wanted():
            raise ClientGone
        if delivery is None:
            await reply(send, 204)
            return
        self._traffic.deliver([delivery])
        self._traffic.acked += 1
        await reply(send, 200, _headers(queue, delivery), delivery.message.body)

    async def _safe_pop(
        self,
        queue: Queue,
        query: Mapping[str, str],
        group: str,
        longest_ms: int,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Deliver one message as a lease: unless the client confirms it in time, it is requeued."""
        duration_ms = lease_ms(query["confirm"])
        taken = await self._leases.take(queue, 1, duration_ms, group, longest_ms, scope, receive)
        if not taken:
            await reply(send, 204)
            return
        (lease,) = taken
        fields = [*_headers(queue, lease.delivery), (b"x-msg-lease", lease.token.encode())]
        await reply(send, 200, fields, lease.delivery.message.body)

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET: peek at messages; with `Accept: text/event-stream`, take them as a stream."""
        is_stream = scope["method"] == "GET" and wants_stream(scope["fields"])
        query = query_of(scope)
        access = self._streams.login(scope, name_in(scope), query) if is_stream else access_of(scope)
        queue = access.queue(name_in(scope), Right.RECEIVE if is_stream else Right.PEEK)
        limit = whole_number("limit", query.get("limit", self._settings.default_limit), 1, COUNT_MAX)
        state = query.get("state", "")
        if state and state not in STATES:
            raise BadRequest(f"bad state {state[:80]!r}: {', '.join(STATES)}")
        after = after_in(query, queue)
        duration_ms = lease_ms(query.get("seconds", queue.options.lease))
        group = group_of(query)
        encoding = encoding_of(query)
        if is_stream:
            refuse_filter(query)
            self._origins.check_page(scope)
            stream = EventStream(
                self._streams, access, queue, limit=limit, duration_ms=duration_ms, group=group, encoding=encoding
            )
            await self._streams.open(stream, scope["fields"].value(b"last-event-id").decode("latin-1"))
            await stream.run(scope, receive, send)
            return
        await wait_for_budget(scope, min(PEEK_BYTES_MAX, limit * queue.options.max_message_size))
        only = group if "group" in query else None
        if (wanted := filter_in(query)) is not None:
            found = await search_through(
                queue, searcher("", wanted), after=after, limit=limit, wanted=wanted, state=state, group=only
            )
            texts = [peeked_json(queue, item, encoding) for item in found.messages]
            await reply_json(send, b'{"messages":[%b]%b}' % (b",".join(texts), progress_json(queue, found)))
            return
        look = partial(queue.peek, state=state, group=only)
        peeked = await _peek(queue, look, limit, after)
        texts = [peeked_json(queue, item, encoding) for item in peeked]
        await reply_json(send, b'{"messages":[' + b",".join(texts) + b"]}")


def _headers(queue: Queue, delivery: Delivery) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply that is a message."""
    message = delivery.message
    return [
        *http_headers(message.headers),
        (b"x-msg-id", queue.message_id(message.seq).encode()),
        (b"x-msg-timestamp", b"%d" % message.timestamp_ms),
        (b"x-msg-redelivered", _TRUE_FALSE[delivery.tries > 0]),
        (b"x-msg-tries", b"%d" % delivery.tries),
        *OPAQUE,
    ]


async def _peek(queue: Queue, look: Callable[..., None], limit: int, after: int) -> list[Peeked]:
    """Peek at a few messages at a time, so that at most twice the bytes of a reply are in memory."""
    at_once = max(PEEK_BYTES_MAX // queue.options.max_message_size, 1)
    found: list[Peeked] = []
    size = 0
    while len(found) < limit:
        count = min(at_once, limit - len(found))
        peeked: list[Peeked]
        (peeked,) = await answer(partial(look, count, after=after))
        for item in peeked:
            size += len(item.message.headers) + len(item.message.body)
            if found and size > PEEK_BYTES_MAX:
                return found
            found.append(item)
        if len(peeked) < count:
            break
        after = peeked[-1].message.seq
    return found


def peeked_json(queue: Queue, item: Peeked, encoding: Encoding | None) -> bytes:
    message = item.message
    inside = metadata_json(message, queue.message_id(message.seq), item.tries)
    more = b',"due":%d' % item.due_ms if item.state == "delayed" else b""
    if message.expires_ms:
        more += b',"expiry":%d' % message.expires_ms
    if message.groups:
        more += b',"groups":%b' % orjson.dumps(message.groups)
    return b'{%b,"state":"%b"%b,%b}' % (inside, item.state.encode(), more, body_json(message.body, encoding))
