"""What an operator does to a queue: empty it, bring dead letters home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.names import parse_queue_name
from curbstone.gateway.formats.parameters import whole_number
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.resources.message import missing
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue

REDRIVE_MAX = 1_000_000_000


class Admin:
    """The handlers of `…/purge` and `…/redrive`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def purge(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """POST purge: drop what is ready or delayed; what is in work stays."""
        queue = access_of(scope).managed(name_in(scope), "purge queue")
        _, purged = await answer(queue.purge)
        await reply_json(send, {"purged": purged})

    async def redrive(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST redrive: move dead letters, or that of an `id`, back where they came from, or to the queue in `to`."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        fields = await read_object(scope, receive, self._settings.json_bytes_max, "a redrive", ("to", "limit", "id"))
        to = fields.get("to")
        if to is not None and not isinstance(to, str):
            raise BadRequest("bad to: a queue name, or project/queue")
        target = parse_queue_name(to, queue.name.project) if to else None
        limit = whole_number("limit", fields.get("limit", REDRIVE_MAX), 1, REDRIVE_MAX)
        seq = _seq_of(queue, fields["id"]) if "id" in fields else 0
        _, redriven = await answer(lambda done: access_of(scope).redrive(queue.name, target, limit, done, seq))
        if seq and not redriven.moved and not redriven.stayed:
            raise missing(queue, str(fields["id"]))
        await reply_json(send, {"moved": redriven.moved, "stayed": redriven.stayed, "more": redriven.more})


def _seq_of(queue: Queue, message_id: object) -> int:
    if not isinstance(message_id, str):
        raise BadRequest("bad id: it must be a message's id")
    seq = queue.parse_id(message_id)
    if not seq:
        raise missing(queue, message_id)
    return seq
