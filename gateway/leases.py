"""Leases over HTTP: take messages for a while, settle them in any connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest
from curbstone.core.queue import Outcome
from curbstone.gateway.body import read_object
from curbstone.gateway.message_json import Encoding, body_json, metadata_json
from curbstone.gateway.parameters import (
    COUNT_MAX,
    encoding_of,
    group_of,
    query_of,
    seconds_ms,
    wait_ms,
    whole_number,
)
from curbstone.gateway.queues import name_in
from curbstone.gateway.reply import reply_json
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.waiting import Polls, answer

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.queue import Queue
    from curbstone.core.waiters import Lease

LEASE_S_MAX = 7 * 86400


class Leases:
    """The handlers of `…/messages/lease`, `/ack`, `/nack` and `/extend`."""

    def __init__(self, broker: Broker, settings: GatewaySettings, polls: Polls) -> None:
        self._broker = broker
        self._settings = settings
        self._polls = polls

    async def lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST lease: up to `count` messages, each of which returns by itself after `seconds`."""
        queue, fields = await self._call(scope, receive)
        count = whole_number("count", fields.get("count", 1), 1, COUNT_MAX)
        duration_ms = _lease_ms(fields.get("seconds", queue.options.lease))
        longest_ms = wait_ms(fields.get("wait", 0))
        group = group_of(fields)
        encoding = encoding_of({**query_of(scope), **_encoding_in(fields)})
        if longest_ms:
            leases: list[Lease] | None = await self._polls.poll(
                lambda done: queue.lease(count, duration_ms, done, group=group, wait_ms=longest_ms), receive
            )
        else:
            (leases,) = await answer(lambda done: queue.lease(count, duration_ms, done, group=group))
        texts = [_lease_json(queue, lease, encoding) for lease in leases or ()]
        await reply_json(send, b'{"messages":[' + b",".join(texts) + b"]}", 200, [(b"cache-control", b"no-store")])

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST ack: settle; answered after the commit."""
        queue, fields = await self._call(scope, receive)
        tokens = _tokens(fields)
        _, settled, stale = await answer(lambda done: queue.settle_leases(tokens, Outcome.ACK, done))
        await reply_json(send, {"settled": settled, "stale": stale})

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST nack: back to the queue, maybe later, or to the dead-letter queue."""
        queue, fields = await self._call(scope, receive)
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
            lambda done: queue.settle_leases(tokens, outcome, done, delay_ms=delay_ms, error=error)
        )
        await reply_json(send, {"settled": settled, "stale": stale})

    async def extend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST extend: the leases last `seconds` from now."""
        queue, fields = await self._call(scope, receive)
        tokens = _tokens(fields)
        stale = queue.extend(tokens, _lease_ms(fields.get("seconds", queue.options.lease)))
        await reply_json(send, {"settled": len(tokens) - len(stale), "stale": stale})

    async def _call(self, scope: Scope, receive: Receive) -> tuple[Queue, dict[str, Any]]:
        queue = self._broker.get(name_in(scope))
        return queue, await read_object(scope, receive, self._settings.json_bytes_max)


def _lease_ms(seconds: object) -> int:
    duration_ms = seconds_ms("seconds", seconds, LEASE_S_MAX)
    if not duration_ms:
        raise BadRequest("bad seconds 0: a lease lasts longer than that")
    return duration_ms


def _tokens(fields: dict[str, Any]) -> list[str]:
    tokens = fields.get("ackIds")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BadRequest("bad ackIds: a list of strings")
    return list(dict.fromkeys(tokens))


def _encoding_in(fields: dict[str, Any]) -> dict[str, Any]:
    return {"encoding": fields["encoding"]} if fields.get("encoding") is not None else {}


def _lease_json(queue: Queue, lease: Lease, encoding: Encoding | None) -> bytes:
    message = lease.delivery.message
    token = orjson.dumps(lease.token)
    inside = metadata_json(message, queue.message_id(message.seq), lease.delivery.tries, token)
    return b'{%b,"expires":%d,%b}' % (inside, lease.expires_ms, body_json(message.body, encoding))
