"""Settles many leases in one call, each in its own way: ack, nack or reject."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.traffic import Traffic
from curbstone.core.values import Outcome
from curbstone.gateway.formats.parameters import seconds_ms
from curbstone.gateway.http.callbacks import TOKENS_AT_ONCE, answers, in_pieces
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import reply_json
from curbstone.gateway.http.typed_body import Body, read_typed, rule
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

ENDS_MAX = 1000
"""The most combinations of delay and error in one call. Leases with the same combination are settled together."""


class RejectItem(msgspec.Struct, forbid_unknown_fields=True):
    """A lease whose message is rejected, with the reason."""

    ack_id: str = msgspec.field(name="ackId")
    error: str = ""


class NackItem(RejectItem):
    """A lease whose message is requeued, with the delay and the reason."""

    delay: Any = None
    """In seconds; None for the queue's own nack delay."""


class SettleRequest(Body):
    """The body of a settle: the leases that end, and how."""

    what = "a settle"

    ack: Annotated[list[str], rule("a list of ackIds")] = []
    nack: Annotated[list[NackItem], rule("a list of objects with an ackId, and maybe delay and error")] = []
    reject: Annotated[list[RejectItem], rule("a list of objects with an ackId, and maybe error")] = []

    def tokens_by_end(self) -> dict[End, list[str]]:
        """Return the leases' tokens by how they end; raise BadRequest for a bad delay or a repeated token."""
        tokens = [*self.ack, *[back.ack_id for back in self.nack], *[dead.ack_id for dead in self.reject]]
        if len(set(tokens)) < len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise BadRequest(f"the ackId {twice[:80]!r} appears twice in one settle")
        found = {End(Outcome.ACK): self.ack} if self.ack else {}
        for back in self.nack:
            delay_ms = None if back.delay is None else seconds_ms("delay", back.delay)
            found.setdefault(End(Outcome.NACK, delay_ms, back.error), []).append(back.ack_id)
        for dead in self.reject:
            found.setdefault(End(Outcome.REJECT, None, dead.error), []).append(dead.ack_id)
        return found


class End(NamedTuple):
    """How a lease ends."""

    outcome: Outcome
    delay_ms: int | None = None
    error: str = ""


class Settles:
    """The handler of `…/messages/settle`."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: settle leases; answered after the commit. Not a transaction: after an error, some may be settled."""
        access = access_of(scope)
        queue = access.queue(name_in(scope), Right.RECEIVE)
        body = await read_typed(scope, receive, self._settings.json_bytes_max, SettleRequest)
        tokens_by_end = body.tokens_by_end()
        if len(tokens_by_end) > ENDS_MAX:
            raise BadRequest(f"a settle has at most {ENDS_MAX} different delays and errors")
        results: list[tuple[Any, ...] | CurbstoneError] = []
        pieces = [(end, piece) for end, tokens in tokens_by_end.items() for piece in in_pieces(tokens)]
        some, size = [], 0
        for end, tokens in pieces:
            more = partial(access.settle_leases, queue, tokens, end.outcome, delay_ms=end.delay_ms, error=end.error)
            some.append(more)
            size += len(tokens)
            if size >= TOKENS_AT_ONCE:
                results += await answers(some)
                some, size = [], 0
        results += await answers(some)
        settled, stale = 0, []
        for (end, _), result in zip(pieces, results, strict=True):
            if not isinstance(result, CurbstoneError):
                _, count, ended = result
                self._traffic.settle(end.outcome, count)
                settled += count
                stale += ended
        for result in results:
            if isinstance(result, CurbstoneError):
                raise result
        await reply_json(send, {"settled": settled, "stale": stale})
