"""What an operator does to a queue: empty it, bring dead letters home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from curbstone.core.errors import BadRequest
from curbstone.core.names import parse_queue_name
from curbstone.gateway.formats.parameters import whole_number
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.long_poll import answer
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Broker

REDRIVE_MAX = 1_000_000_000


class Admin:
    """The handlers of `…/purge` and `…/redrive`."""

    def __init__(self, broker: Broker, settings: GatewaySettings) -> None:
        self._broker = broker
        self._settings = settings

    async def purge(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """POST purge: drop what is ready or delayed; what is in work stays."""
        queue = self._broker.get(name_in(scope))
        _, purged = await answer(queue.purge)
        await reply_json(send, {"purged": purged})

    async def redrive(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST redrive: move dead letters back where they came from, or to the queue named in `to`."""
        queue = self._broker.get(name_in(scope))
        fields = await read_object(scope, receive, self._settings.json_bytes_max, "a redrive", ("to", "limit"))
        to = fields.get("to")
        if to is not None and not isinstance(to, str):
            raise BadRequest("bad to: a queue name, or project/queue")
        target = parse_queue_name(to, queue.name.project) if to else None
        limit = whole_number("limit", fields.get("limit", REDRIVE_MAX), 1, REDRIVE_MAX)
        _, redriven = await answer(lambda done: queue.redrive(target, limit, done))
        await reply_json(send, {"moved": redriven.moved, "stayed": redriven.stayed, "more": redriven.more})
