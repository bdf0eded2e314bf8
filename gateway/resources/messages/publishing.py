"""What all POSTs that publish to a queue share: idempotency keys, numbers of producers, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.gateway.formats.idempotency import HEADER, key_of
from curbstone.gateway.formats.producer_headers import DUPLICATE, NUMBERED, numbered_of
from curbstone.gateway.http.callbacks import answer, answers_for
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.response import JsonResponse
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.resources.queues.queues import name_in

if TYPE_CHECKING:
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
    """How many messages were stored before; they are the first ones."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The reply's header about repeats."""
        return [(DUPLICATE, b"%d" % self.repeats)] if self.repeats else []


async def publish(queue: Queue, scope: AnyScope, messages: list[Message], *, atomic: bool) -> Stored:
    """Publish the messages of a request; raise CurbstoneError if one of them was not stored."""
    key = None
    named = scope["fields"].named
    if not _OF_REPEATS.isdisjoint(named):
        key, numbered = key_of(access_of(scope), named, messages), numbered_of(access_of(scope), named)
        if numbered is not None:
            if key is not None:
                raise BadRequest("a producer with numbers needs no Idempotency-Key")
            return await _publish_numbered(queue, messages, numbered, atomic=atomic)
    _, first, count = await answer(lambda done: queue.publish(messages, done, atomic=atomic, key=key))
    return Stored([queue.message_id(seq) for seq in range(first, first + count)], 0)


async def _publish_numbered(queue: Queue, messages: list[Message], numbered: Numbered, *, atomic: bool) -> Stored:
    """Publish, and wait for both answers: for the messages stored before, and for the rest."""
    told = await answers_for(
        len(messages), lambda done: queue.publish(messages, done, atomic=atomic, numbered=numbered)
    )
    seqs = [seq for first, count in told if first for seq in range(first, first + count)]
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
            raise Problem(404, f"queue {queue.name} knows no producer {name}")
        told = {"producer": name, "seq": last.number, "id": queue.message_id(last.seq), "timestamp": last.time_ms}
        return JsonResponse(told)
