"""Settles many leases in one call, each in its own way: ack, nack or reject."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.traffic import Traffic
from curbstone.core.values import Outcome
from curbstone.gateway.formats.parameters import seconds_ms
from curbstone.gateway.http.answers import answers
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.http.typed_body import Body, read_typed, rule
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

WAYS_MAX = 1000
"""The most different combinations of delay and error in one call. Leases with the same one are settled together."""


class Rejected(msgspec.Struct, forbid_unknown_fields=True):
    """A lease whose message is rejected, and why."""

    ack_id: str = msgspec.field(name="ackId")
    error: str = ""


class Returned(Rejected):
    """A lease whose message is given back, with what delay, and why."""

    delay: Any = None
    """In seconds; None for the queue's own nack delay."""


class Settle(Body):
    """The body of a settle: which leases end, and how."""

    what = "a settle"

    ack: Annotated[list[str], rule("a list of ackIds")] = []
    nack: Annotated[list[Returned], rule("a list of objects with an ackId, and maybe delay and error")] = []
    reject: Annotated[list[Rejected], rule("a list of objects with an ackId, and maybe error")] = []

    def ends(self) -> Iterator[tuple[str, End]]:
        """Yield each lease's token and how it ends; raise BadRequest for a bad delay."""
        for token in self.ack:
            yield token, End(Outcome.ACK)
        for back in self.nack:
            delay_ms = None if back.delay is None else seconds_ms("delay", back.delay)
            yield back.ack_id, End(Outcome.NACK, delay_ms, back.error)
        for dead in self.reject:
            yield dead.ack_id, End(Outcome.REJECT, None, dead.error)


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
        """POST: settle leases; answered when all is on disk. Not a transaction: after an error, some may be settled."""
        access = access_of(scope)
        queue = access.queue(name_in(scope), Right.RECEIVE)
        asked = await read_typed(scope, receive, self._settings.json_bytes_max, Settle)
        ways: dict[End, list[str]] = {}
        known: set[str] = set()
        for token, end in asked.ends():
            if token in known:
                raise BadRequest(f"the ackId {token[:80]!r} stands twice in one settle")
            known.add(token)
            ways.setdefault(end, []).append(token)
        if len(ways) > WAYS_MAX:
            raise BadRequest(f"a settle has at most {WAYS_MAX} different delays and errors")
        results = await answers(
            [
                partial(access.settle_leases, queue, tokens, end.outcome, delay_ms=end.delay_ms, error=end.error)
                for end, tokens in ways.items()
            ]
        )
        settled, stale = 0, []
        for end, result in zip(ways, results, strict=True):
            if not isinstance(result, CurbstoneError):
                _, count, ended = result
                self._traffic.settle(end.outcome, count)
                settled += count
                stale += ended
        for result in results:
            if isinstance(result, CurbstoneError):
                raise result
        await reply_json(send, {"settled": settled, "stale": stale})
