"""The common parts of publishing by POST: reading messages, idempotency keys and producer numbers, and the answer."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.batches import BATCH, BATCH_SIZE, BATCH_TO, has_batch
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.message import Message, flags_of
from curbstone.core.orders import MARKS, NAMED, changed, has_name, level_in, orders_in, orders_of
from curbstone.core.traffic import Traffic
from curbstone.gateway.formats import cloud_events
from curbstone.gateway.formats.idempotency import HEADER, key_of
from curbstone.gateway.formats.json_message import check_message, event_message, message_of, put_body
from curbstone.gateway.formats.metadata import HttpHeaders, block_of_http
from curbstone.gateway.formats.parameters import groups_of, query_of, seconds_ms, ttl_ms
from curbstone.gateway.formats.producer_headers import DUPLICATE, NUMBERED, numbered_of
from curbstone.gateway.http.body import read_body
from curbstone.gateway.http.callbacks import answer, answers_for
from curbstone.gateway.http.json_body import parse_json
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem, status_of
from curbstone.gateway.http.responses import JsonResponse, reply_json
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import BATCH_MESSAGES_MAX
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.rate_limit import Meter
    from curbstone.core.port import Queue
    from curbstone.core.values import Numbered


_OF_REPEATS = frozenset((HEADER, *NUMBERED))
"""The headers by which a repeated message is recognized."""


class Stored(NamedTuple):
    """The result of a publish."""

    ids: list[str]
    """The ids of the messages stored now. A repeated message's id is known only if it is the last its producer
    stored."""
    repeats: int
    """How many messages had been stored before; they are the first ones."""
    duplicates: tuple[int, ...] = ()
    """The places of messages that were not stored because other messages have their unique names; `ids` has the ids of
    those."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The reply's header for messages that were not stored again."""
        count = self.repeats + len(self.duplicates)
        return [(DUPLICATE, b"%d" % count)] if count else []

    @property
    def members(self) -> dict[str, object]:
        """The members of a reply in JSON."""
        found: dict[str, object] = {"ids": self.ids}
        return found | {"duplicates": self.duplicates} if self.duplicates else found


async def publish(queue: Queue, scope: AnyScope, messages: list[Message], *, atomic: bool) -> Stored:
    """Publish the messages of a request; raise CurbstoneError if one of them was not stored."""
    if len(messages) > 1 or messages[0].orders is not None:
        access_of(scope).check_batches(queue.name, messages)
    key = None
    named = scope["fields"].named
    if not _OF_REPEATS.isdisjoint(named):
        key, numbered = key_of(access_of(scope), named, messages), numbered_of(access_of(scope), named)
        if numbered is not None:
            if key is not None:
                raise BadRequest("a numbered producer must not send an Idempotency-Key")
            return await _publish_numbered(queue, messages, numbered, atomic=atomic)
    _, first, count = await answer(lambda done: queue.publish(messages, done, atomic=atomic, key=key))
    if flags_of(messages) & NAMED and (count > 1 or messages[0].seq):
        return _named(queue, messages)
    return Stored([queue.message_id(seq) for seq in range(first, first + count)], 0)


def _named(queue: Queue, messages: list[Message]) -> Stored:
    """Return the result of a publish with unique names; a message without a seq had been stored under its key."""
    ids = [queue.message_id(message.seq) for message in messages if message.seq]
    duplicates = tuple([place for place, message in enumerate(messages) if message.is_duplicate])
    return Stored(ids, len(messages) - len(ids), duplicates)


async def _publish_numbered(queue: Queue, messages: list[Message], numbered: Numbered, *, atomic: bool) -> Stored:
    """Publish, and wait for both answers: for the messages stored before, and for the rest."""
    outcomes = await answers_for(
        len(messages), lambda done: queue.publish(messages, done, atomic=atomic, numbered=numbered)
    )
    if flags_of(messages) & NAMED and messages[-1].seq:
        return _named(queue, messages)
    seqs = [seq for first, count in outcomes if first for seq in range(first, first + count)]
    repeats = len(messages) - len(seqs)
    last = queue.last_number(numbered.producer)
    if repeats == 1 == len(messages) and last is not None and last.number == numbered.first:
        seqs = [last.seq]
    return Stored([queue.message_id(seq) for seq in seqs], repeats)


class Producers:
    """The handler of `/v2/{project}/queues/{queue}/producers/{producer}`."""

    async def get(self, request: Request) -> Response:
        """GET: the last message that a producer has stored."""
        access, name = access_of(request), request.path_params["producer"]
        queue = access.queue(name_in(request), Right.SEND)
        last = queue.last_number(access.producer(name))
        if last is None:
            raise Problem(404, f"queue {queue.name} has no producer {name}")
        members = {"producer": name, "seq": last.number, "id": queue.message_id(last.seq), "timestamp": last.time_ms}
        return JsonResponse(members)


async def read_message(scope: AnyScope, receive: Receive, settings: GatewaySettings, bytes_max: int) -> Message:
    """Return the message in a POST: the body, with the metadata in the headers and the options in the query.

    Raise TooFast if the user publishes more than its rate.
    """
    meter = metered(scope)
    fields = tuple(scope["fields"].of_message)
    mode = cloud_events.mode_of(fields)
    if mode:
        message = await _read_event(scope, receive, settings, mode, fields, bytes_max)
    else:
        message = Message(await read_body(scope, receive, bytes_max), block_of_http(fields))
    if scope["query_string"]:
        query = query_of(scope)
        message.orders = orders_of(
            ttl_ms=ttl_ms(query["ttl"], settings.max_ttl_s) if "ttl" in query else 0,
            delay_ms=seconds_ms("delay", query.get("delay", 0)),
            groups=groups_of(query.get("groups", "")),
            level=level_in(message.headers),
            named=has_name(message.headers),
            batched=has_batch(message.headers),
        )
    elif any([message.headers.find(mark) >= 0 for mark in MARKS]):
        message.orders = orders_in(message.headers)
    if meter is not None:
        meter.count(1, len(message.body) + len(message.headers))
    return message


def metered(scope: AnyScope) -> Meter | None:
    """Return the meter of a client whose rate is limited, else None; raise TooFast if it is over its rate."""
    meter = access_of(scope).identity.meter
    if meter is not None:
        meter.check("http")
    return meter


async def _read_event(
    scope: AnyScope,
    receive: Receive,
    settings: GatewaySettings,
    mode: bytes,
    fields: HttpHeaders,
    bytes_max: int,
) -> Message:
    """Return the message for a CloudEvent in the body, with the request's own metadata in addition to the event's."""
    if mode == cloud_events.BATCH:
        raise Problem(415, "send a batch of CloudEvents to …/messages/batch")
    event = cloud_events.parse(await read_body(scope, receive, settings.json_bytes_max))
    message = event_message(event, bytes_max)
    message.headers += block_of_http(tuple([field for field in fields if field[0].startswith(b"x-")]))
    return message


async def read_batch(scope: AnyScope, receive: Receive, settings: GatewaySettings, bytes_max: int) -> list[Message]:
    """Return the messages in a JSON array or a batch of CloudEvents; an error names the first one that is wrong.

    Raise TooFast like `read_message`.
    """
    meter = metered(scope)
    text = await read_body(scope, receive, settings.json_bytes_max)
    of_events = cloud_events.mode_of(tuple(scope["fields"].of_message)) == cloud_events.BATCH
    items = cloud_events.parse(text) if of_events else parse_json(text)
    if not isinstance(items, list) or not items:
        raise BadRequest("the body must be a JSON array of at least one message")
    if len(items) > BATCH_MESSAGES_MAX:
        raise BadRequest(f"the batch has more than {BATCH_MESSAGES_MAX} messages")
    messages = [_of_batch(place, item, of_events, settings, bytes_max) for place, item in enumerate(items)]
    if meter is not None:
        meter.count(len(messages), sum([len(message.body) + len(message.headers) for message in messages]))
    return messages


def _of_batch(place: int, item: Any, is_event: bool, settings: GatewaySettings, bytes_max: int) -> Message:
    if not isinstance(item, dict):
        raise BadRequest(f"message {place} of the batch is not a JSON object")
    try:
        if is_event:
            return event_message(item, bytes_max)
        check_message(item)
        message = message_of(item, settings.max_ttl_s)
        put_body(message, item, bytes_max)
    except CurbstoneError as error:
        raise Problem(status_of(error), f"message {place} of the batch: {error}") from None
    return message


class Batch:
    """The handler of `/v2/{project}/queues/{queue}/messages/batch`."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish an array of messages; answered with their ids after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.SEND)
        bytes_max = min(self._settings.max_message_size, queue.options.max_message_size)
        messages = await read_batch(scope, receive, self._settings, bytes_max)
        batch = _make_batch(scope, queue, messages)
        self._traffic.published += len(messages)
        stored = await publish(queue, scope, messages, atomic=True)
        self._traffic.confirmed += len(messages)
        await reply_json(send, stored.members | batch, 201, stored.headers)


def _make_batch(scope: AnyScope, queue: Queue, messages: list[Message]) -> dict[str, object]:
    """If a request has the parameter `to`, make its messages a batch that reports to that queue.

    Return the member for the reply, with the id of the batch: that in the parameter `batch`, or a new one. A request
    that is repeated with its Idempotency-Key has the same content, so the id then follows from the key.
    """
    query = query_of(scope)
    if "to" not in query:
        if "batch" in query:
            raise BadRequest("the parameter batch is for a request with the parameter to")
        return {}
    if any([message.orders is not None and message.orders.batched for message in messages]):
        raise BadRequest("with the parameter to, all messages are one batch, so none may name another")
    key = scope["fields"].named.get(HEADER)
    made = blake2b(queue.uid.encode() + key, digest_size=8).hexdigest() if key else secrets.token_hex(8)
    batch = query.get("batch", made)
    lines = block_of_http(
        (
            (BATCH.encode(), batch.encode()),
            (BATCH_SIZE.encode(), b"%d" % len(messages)),
            (BATCH_TO.encode(), query["to"].encode()),
        )
    )
    for message in messages:
        message.headers += lines
        message.orders = changed(message.orders, batched=True)
    return {"batch": batch}
