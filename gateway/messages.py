"""Messages over HTTP: publish, pop, peek. Publish and pop are the hot paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest
from curbstone.core.message import Delivery, Message
from curbstone.gateway.body import read_body
from curbstone.gateway.message_json import Encoding, body_json, metadata_json
from curbstone.gateway.metadata import block_of_http, http_headers, is_kept
from curbstone.gateway.parameters import (
    COUNT_MAX,
    encoding_of,
    group_of,
    groups_of,
    query_of,
    seconds_ms,
    ttl_ms,
    wait_ms,
    whole_number,
)
from curbstone.gateway.queues import name_in
from curbstone.gateway.reply import reply, reply_json
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.waiting import Polls, answer

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.browse import Peeked
    from curbstone.core.queue import Queue

STATES = ("rdy", "wip", "delayed")

_TRUE_FALSE = (b"false", b"true")
# A browser must neither guess another type for a message nor run it as a page, and no cache may keep it.
_OPAQUE = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox"),
    (b"cache-control", b"no-store"),
)


class Messages:
    """The handlers of `/v2/{project}/queues/{queue}/messages`."""

    def __init__(self, broker: Broker, settings: GatewaySettings, polls: Polls) -> None:
        self._broker = broker
        self._settings = settings
        self._polls = polls

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish the body; answered after the commit."""
        queue = self._broker.get(name_in(scope))
        block = block_of_http(tuple([field for field in scope["headers"] if is_kept(field[0])]))
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        message = Message(await read_body(scope, receive, bytes_max), block)
        if scope["query_string"]:
            query = query_of(scope)
            if "ttl" in query:
                message.ttl_ms = ttl_ms(query["ttl"], self._settings.max_ttl_s)
            message.delay_ms = seconds_ms("delay", query.get("delay", 0))
            message.groups = groups_of(query.get("groups", ""))
        _, seq, _ = await answer(lambda done: queue.publish([message], done))
        await reply(send, 201, [(b"x-msg-id", queue.message_id(seq).encode())])

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE: take one message; it is settled when the reply leaves."""
        queue = self._broker.get(name_in(scope))
        query = query_of(scope)
        group = group_of(query) if query else ""
        longest_ms = wait_ms(query.get("wait", 0)) if query else 0
        if longest_ms:
            delivery: Delivery | None = await self._polls.poll(
                lambda done: queue.pop(done, group=group, wait_ms=longest_ms), receive
            )
        else:
            (delivery,) = await answer(lambda done: queue.pop(done, group=group))
        if delivery is None:
            await reply(send, 204)
            return
        message = delivery.message
        fields = [
            *http_headers(message.headers),
            (b"x-msg-id", queue.message_id(message.seq).encode()),
            (b"x-msg-timestamp", b"%d" % message.timestamp_ms),
            (b"x-msg-redelivered", _TRUE_FALSE[delivery.tries > 0]),
            (b"x-msg-tries", b"%d" % delivery.tries),
            *_OPAQUE,
        ]
        await reply(send, 200, fields, message.body)

    async def get(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: look at messages without taking them."""
        queue = self._broker.get(name_in(scope))
        query = query_of(scope)
        limit = whole_number("limit", query.get("limit", self._settings.default_limit), 1, COUNT_MAX)
        state = query.get("state", "")
        if state and state not in STATES:
            raise BadRequest(f"bad state {state[:80]!r}: {', '.join(STATES)}")
        after = queue.parse_id(query["after"]) if query.get("after") else 0
        if after is None:
            raise BadRequest(f"bad after {query['after'][:80]!r}: not the id of a message of this queue")
        encoding = encoding_of(query)
        peeked: list[Peeked]
        (peeked,) = await answer(lambda done: queue.peek(limit, done, after=after, state=state))
        texts = [_peeked_json(queue, item, encoding) for item in peeked]
        await reply_json(send, b'{"messages":[' + b",".join(texts) + b"]}")


def _peeked_json(queue: Queue, item: Peeked, encoding: Encoding | None) -> bytes:
    message = item.message
    inside = metadata_json(message, queue.message_id(message.seq), item.tries)
    due = b',"due":%d' % item.due_ms if item.state == "delayed" else b""
    return b'{%b,"state":"%b"%b,%b}' % (inside, item.state.encode(), due, body_json(message.body, encoding))
