"""Leases over HTTP: take messages for a limited time, and settle them over any connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.traffic import Traffic
from curbstone.core.values import Outcome
from curbstone.gateway.formats.message_json import lease_json
from curbstone.gateway.formats.parameters import (
    encoding_named,
    encoding_of,
    group_named,
    lease_ms,
    query_of,
    seconds_ms,
    wait_ms,
)
from curbstone.gateway.http.answer_budget import wait_for_budget, within_budget
from curbstone.gateway.http.callbacks import answer, in_pieces
from curbstone.gateway.http.client_disconnect import is_gone
from curbstone.gateway.http.login import access_of, caller_of
from curbstone.gateway.http.long_poll import Polls, held_by
from curbstone.gateway.http.problem import ClientGone, Problem
from curbstone.gateway.http.responses import reply, reply_json
from curbstone.gateway.http.typed_body import B, Body, Flag, OptionalText, Seconds, Text, read_typed, rule, whole
from curbstone.gateway.limits import COUNT_MAX, LEASE_S_MAX
from curbstone.gateway.resources.messages.event_stream import EventStreams
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.core.values import Lease


LeaseSeconds = Annotated[float | None, rule(f"a number of seconds from 0 to {LEASE_S_MAX:g}")]


class LeaseRequest(Body):
    """The body of a lease: how many messages, for how long, and how long the request may wait for them."""

    what = "a lease"
    may_be_null = ("encoding",)

    count: Annotated[int, whole(1, COUNT_MAX)] = 1
    seconds: LeaseSeconds = None
    wait: Seconds = 0
    group: Text = ""
    encoding: OptionalText = None


class AckRequest(Body):
    """The body of an ack: the leases that it settles."""

    what = "an ack"

    ack_ids: Annotated[list[str], rule("a list of strings")] = msgspec.field(name="ackIds")

    @property
    def tokens(self) -> list[str]:
        """The tokens of the leases, each once."""
        return list(dict.fromkeys(self.ack_ids))


class NackRequest(AckRequest):
    """The body of a nack: the leases that end, and whether their messages are requeued or dead-lettered."""

    what = "a nack"
    may_be_null = ("delay",)

    delay: Seconds = None
    error: Text = ""
    reject: Flag = False


class ExtendRequest(AckRequest):
    """The body of an extension: the leases, and their new duration."""

    what = "an extension"

    seconds: LeaseSeconds = None


class Leases:
    """The handlers of `…/messages/lease`, `/ack`, `/nack` and `/extend`."""

    def __init__(self, settings: GatewaySettings, polls: Polls, streams: EventStreams, traffic: Traffic) -> None:
        self._settings = settings
        self._polls = polls
        self._streams = streams
        self._traffic = traffic

    async def lease(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST lease: take up to `count` messages. Unless settled, each is requeued after `seconds`."""
        queue, body = await self._call(scope, receive, LeaseRequest)
        duration_ms = _lasting_ms(queue, body.seconds)
        group = group_named(body.group)
        encoding = encoding_of(query_of(scope)) if body.encoding is None else encoding_named(body.encoding)
        leases = await self.take(queue, body.count, duration_ms, group, wait_ms(body.wait or 0), scope, receive)
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
        """Take leases and return them. If the client has left meanwhile, requeue them and raise ClientGone."""
        access, caller = access_of(scope), caller_of(scope)
        await wait_for_budget(scope)
        if longest_ms:
            waited: list[Lease] | None = await self._polls.poll(
                lambda done: access.lease(queue, count, duration_ms, done, caller, group=group, wait_ms=longest_ms),
                receive,
                within_budget(scope, held_by(access, queue.name)),
                queue.give_back,
            )
            leases = waited or []
        else:
            (leases,) = await answer(lambda done: access.lease(queue, count, duration_ms, done, caller, group=group))
        if is_gone(scope):
            queue.give_back(leases)
            raise ClientGone
        self._traffic.deliver([lease.delivery for lease in leases])
        return leases

    async def confirm(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """DELETE a lease: settle its message; answered after the commit."""
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        token = scope["path_params"]["lease"]
        _, settled, stale = await answer(lambda done: access_of(scope).settle_leases(queue, [token], Outcome.ACK, done))
        if stale:
            raise Problem(404, "there is no such lease, or it has ended")
        self._traffic.acked += settled
        await reply(send, 204)

    async def ack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST ack: settle leases; answered after the commit."""
        queue, body = await self._call(scope, receive, AckRequest)
        settled = 0
        stale: list[str] = []
        for tokens in in_pieces(body.tokens):
            _, count, ended = await answer(partial(access_of(scope).settle_leases, queue, tokens, Outcome.ACK))
            self._traffic.acked += count
            settled += count
            stale += ended
        await reply_json(send, {"settled": settled, "stale": stale})

    async def nack(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST nack: return the messages to the queue, maybe after a delay, or send them to the dead-letter queue."""
        queue, body = await self._call(scope, receive, NackRequest)
        delay_ms = seconds_ms("delay", body.delay) if body.delay is not None else None
        outcome = Outcome.REJECT if body.reject else Outcome.NACK
        settle = partial(access_of(scope).settle_leases, delay_ms=delay_ms, error=body.error)
        settled = 0
        stale: list[str] = []
        for tokens in in_pieces(body.tokens):
            _, count, ended = await answer(partial(settle, queue, tokens, outcome))
            self._traffic.settle(outcome, count)
            settled += count
            stale += ended
        await reply_json(send, {"settled": settled, "stale": stale})

    async def extend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST extend: make leases last `seconds` from now."""
        queue, body = await self._call(scope, receive, ExtendRequest)
        duration_ms = _lasting_ms(queue, body.seconds)
        stale: list[str] = []
        for tokens in in_pieces(body.tokens):
            _, ended = await answer(partial(access_of(scope).extend, queue, tokens, duration_ms))
            self._streams.extended(tokens, duration_ms)
            stale += ended
        await reply_json(send, {"settled": len(body.tokens) - len(stale), "stale": stale})

    async def _call(self, scope: Scope, receive: Receive, kind: type[B]) -> tuple[Queue, B]:
        queue = access_of(scope).queue(name_in(scope), Right.RECEIVE)
        return queue, await read_typed(scope, receive, self._settings.json_bytes_max, kind)


def _lasting_ms(queue: Queue, seconds: float | None) -> int:
    """Return the duration of a lease: the requested one, else the queue's option `lease`."""
    return lease_ms(queue.options.lease if seconds is None else seconds)
