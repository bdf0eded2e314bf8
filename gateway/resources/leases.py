"""Leases over HTTP: take messages for a while, settle them in any connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.traffic import Traffic
from curbstone.core.values import Outcome
from curbstone.gateway.formats.message_json import lease_json
from curbstone.gateway.formats.parameters import (
    encoding_named,
    encoding_of,
    group_of,
    lease_ms,
    query_of,
    seconds_ms,
    wait_ms,
    whole_number,
)
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.departure import is_gone
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.reply import reply, reply_json
from curbstone.gateway.limits import COUNT_MAX
from curbstone.gateway.resources.event_stream import EventStreams
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.core.values import Lease

_LEASE = ("count", "seconds", "wait", "group", "encoding")
_ACK = ("ackIds",)
_NACK = ("ackIds", "delay", "error", "reject")
_EXTEND = ("ackIds", "seconds")


class Leases:
    """The handlers of `…/messages/lease`, `/ack`, `/nack` and `/extend`."""

    def __init__(self, settings: GatewaySettings, polls: Polls, streams: EventStreams, traffic: Traffic) -> None:
        self._settings = settings
        self._polls = polls
        self._streams = streams
        self._traffic = traffic

    async def lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST lease: up to `count` messages, each of which returns by itself after `seconds`."""
        queue, fields = await self._call(scope, receive, _LEASE)
        count = whole_number("count", fields.get("count", 1), 1, COUNT_MAX)
        duration_ms = lease_ms(fields.get("seconds", queue.options.lease))
        longest_ms = wait_ms(fields.get("wait", 0))
        group = group_of(fields)
        encoding = encoding_of(query_of(scope))
        if fields.get("encoding") is not None:
            encoding = encoding_named(fields["encoding"])
        leases = await self.take(queue, count, duration_ms, group, longest_ms, scope, receive)
        texts = [lease_json(queue, lease, encoding) for lease in leases]
        await reply_json(send, b'{"messages":[' + b",".join(texts) + b"]}", 200, [(b"cache-control", b"no-store")])

    async def take(
        self,
        queue: Queue,
        count: int,
        duration_ms: int,
        group: str,
        longest_ms: int,
        scope: Scope,
        receive: Receive,
    ) -> list[Lease]:
        """Return leases for a client that is there to take them; raise ClientGone."""
        access = access_of(scope)
        if longest_ms:
            waited: list[Lease] | None = await self._polls.poll(
                lambda done: access.lease(queue, count, duration_ms, done, group=group, wait_ms=longest_ms),
                receive,
                held_by(access, queue.name),
                queue.give_back,
            )
            leases = waited or []
        else:
            (leases,) = await answer(lambda done: access.lease(queue, count, duration_ms, done, group=group))
        if is_gone(scope):
            queue.give_back(leases)
            raise ClientGone
        self._traffic.deliver([lease.delivery for lease in leases])
        return leases

    async def confirm(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """DELETE a lease: what it holds is settled; answered after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        token = scope["path_params"]["lease"]
        _, settled, stale = await answer(lambda done: access_of(scope).settle_leases(queue, [token], Outcome.ACK, done))
        if stale:
            raise Problem(404, "the lease has ended, or there never was one of this name")
        self._traffic.acked += settled
        self._streams.settled([token])
        await reply(send, 204)

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST ack: settle; answered after the commit."""
        queue, fields = await self._call(scope, receive, _ACK)
        tokens = _tokens(fields)
        _, settled, stale = await answer(lambda done: access_of(scope).settle_leases(queue, tokens, Outcome.ACK, done))
        self._traffic.acked += settled
        self._streams.settled(tokens)
        await reply_json(send, {"settled": settled, "stale": stale})

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST nack: back to the queue, maybe later, or to the dead-letter queue."""
        queue, fields = await self._call(scope, receive, _NACK)
        tokens = _tokens(fields)
        delay_ms = seconds_ms("delay", fields["delay"]) if fields.get("delay") is not None else None
        error = fields.get("error", "")
        if not isinstance(error, str):
            raise BadRequest("bad error: it must be a string")
        reject = fields.get("reject", False)
        if not isinstance(reject, bool):
            raise BadRequest("bad reject: true or false")
        outcome = Outcome.REJECT if reject else Outcome.NACK
        _, settled, stale = await answer(
            lambda done: access_of(scope).settle_leases(queue, tokens, outcome, done, delay_ms=delay_ms, error=error)
        )
        if reject:
            self._traffic.rejected += settled
        else:
            self._traffic.returned += settled
        self._streams.settled(tokens)
        await reply_json(send, {"settled": settled, "stale": stale})

    async def extend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST extend: the leases last `seconds` from now."""
        queue, fields = await self._call(scope, receive, _EXTEND)
        tokens = _tokens(fields)
        duration_ms = lease_ms(fields.get("seconds", queue.options.lease))
        _, stale = await answer(lambda done: access_of(scope).extend(queue, tokens, duration_ms, done))
        self._streams.extended(tokens, duration_ms)
        await reply_json(send, {"settled": len(tokens) - len(stale), "stale": stale})

    async def _call(self, scope: Scope, receive: Receive, known: tuple[str, ...]) -> tuple[Queue, dict[str, Any]]:
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        return queue, await read_object(scope, receive, self._settings.json_bytes_max, "the body", known)


def _tokens(fields: dict[str, Any]) -> list[str]:
    tokens = fields.get("ackIds")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BadRequest("bad ackIds: a list of strings")
    return list(dict.fromkeys(tokens))
