"""What an operator does to a queue: empty it, bring dead letters home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.names import parse_queue_name
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.reply import reply_json
from curbstone.gateway.http.typed_body import Body, YesOrNo, read_typed, rule, whole
from curbstone.gateway.resources.message import missing
from curbstone.gateway.resources.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue

REDRIVE_MAX = 1_000_000_000


class Redrive(Body):
    """Which dead letters go back, and where to."""

    what = "a redrive"
    may_be_null = ("to",)

    to: Annotated[str | None, rule("a queue name, or project/queue")] = None
    limit: Annotated[int, whole(1, REDRIVE_MAX)] = REDRIVE_MAX
    id: Annotated[str | None, rule("it must be a message's id")] = None


class Pause(Body):
    """What a queue does no more."""

    what = "a pause"

    deliver: YesOrNo = True
    publish: YesOrNo = False


class Admin:
    """The handlers of `…/pause`, `…/resume`, `…/purge` and `…/redrive`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def pause(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST pause: deliver nothing, by no protocol; or, as the body says, take nothing in."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        pause = await read_typed(scope, receive, self._settings.json_bytes_max, Pause)
        changes = {"paused": pause.deliver, "publish_paused": pause.publish}
        await _set(scope, queue, {option: True for option, is_asked in changes.items() if is_asked}, send)

    async def resume(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """POST resume: undo `pause`, of both."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        await _set(scope, queue, {"paused": False, "publish_paused": False}, send)

    async def purge(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """POST purge: drop what is ready or delayed; what is in work stays."""
        queue = access_of(scope).managed(name_in(scope), "purge queue")
        _, purged = await answer(queue.purge)
        await reply_json(send, {"purged": purged})

    async def redrive(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST redrive: move dead letters, or that of an `id`, back where they came from, or to the queue in `to`."""
        queue = access_of(scope).queue(name_in(scope), Right.MANAGE)
        asked = await read_typed(scope, receive, self._settings.json_bytes_max, Redrive)
        target = parse_queue_name(asked.to, queue.name.project) if asked.to else None
        seq = _seq_of(queue, asked.id) if asked.id is not None else 0
        _, redriven = await answer(lambda done: access_of(scope).redrive(queue.name, target, asked.limit, done, seq))
        if asked.id is not None and not redriven.moved and not redriven.stayed:
            raise missing(queue, asked.id)
        await reply_json(send, {"moved": redriven.moved, "stayed": redriven.stayed, "more": redriven.more})


async def _set(scope: Scope, queue: Queue, changes: dict[str, bool], send: Send) -> None:
    """Set options of a queue, and tell what it is paused for now."""
    await answer(lambda done: access_of(scope).declare(queue.name, changes, done))
    await reply_json(send, {"paused": queue.options.paused, "publish_paused": queue.options.publish_paused})


def _seq_of(queue: Queue, message_id: str) -> int:
    seq = queue.parse_id(message_id)
    if not seq:
        raise missing(queue, message_id)
    return seq
