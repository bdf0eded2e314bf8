"""Operations on a queue: pause and resume, purge, undo, redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.names import parse_queue_name
from curbstone.core.values import UndoRequest
from curbstone.gateway.formats.parameters import group_named, seconds_ms
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.typed_body import Body, Flag, Seconds, Text, read_typed, rule, whole
from curbstone.gateway.resources.messages.message import missing
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.core.port import Queue

REDRIVE_MAX = 1_000_000_000
UNDO_MAX = 10_000


class Redrive(Body):
    """The body of a redrive: the dead letters to move, and their destination."""

    what = "a redrive"
    may_be_null = ("to",)

    to: Annotated[str | None, rule("a queue name, or project/queue")] = None
    limit: Annotated[int, whole(1, REDRIVE_MAX)] = REDRIVE_MAX
    id: Annotated[str | None, rule("it must be a message's id")] = None


class Pause(Body):
    """The body of a pause: what the queue stops doing. A member that is false changes nothing."""

    what = "a pause"

    deliver: Flag = True
    publish: Flag = False


class Purge(Body):
    """The body of a purge: whether the messages stay in the log, so that an undo can restore them."""

    what = "a purge"

    keep: Flag = False


class Undo(Body):
    """The body of an undo: the settled messages to restore."""

    what = "an undo"

    limit: Annotated[int, whole(1, UNDO_MAX)] = 1000
    within: Seconds = None
    id: Annotated[str | None, rule("it must be a message's id")] = None
    group: Text = ""


class Admin:
    """The handlers of `…/pause`, `…/resume`, `…/purge`, `…/undo` and `…/redrive`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def pause(self, request: Request) -> Response:
        """POST pause: stop delivering, over every protocol, and stop accepting messages if the body says so.

        A member that is false changes nothing: a pause never resumes what another pause stopped.
        """
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        pause = await read_typed(request, request.receive, self._settings.json_bytes_max, Pause)
        changes = {"paused": pause.deliver, "publish_paused": pause.publish}
        return await _set(request, queue, {option: True for option, is_asked in changes.items() if is_asked})

    async def resume(self, request: Request) -> Response:
        """POST resume: deliver and accept messages again."""
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        return await _set(request, queue, {"paused": False, "publish_paused": False})

    async def purge(self, request: Request) -> Response:
        """POST purge: remove all ready and delayed messages, and erase them unless `keep`. Delivered messages stay."""
        access, name = access_of(request), name_in(request)
        access.queue(name, Right.MANAGE)
        body = await read_typed(request, request.receive, self._settings.json_bytes_max, Purge)
        _, purged = await answer(lambda done: access.purge(name, done, keep=body.keep))
        return JsonResponse({"purged": purged})

    async def undo(self, request: Request) -> Response:
        """POST undo: restore messages that were acked, popped or purged, as far as the log still has them."""
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        body = await read_typed(request, request.receive, self._settings.json_bytes_max, Undo)
        seq = _seq_of(queue, body.id) if body.id is not None else 0
        within_ms = max(1, seconds_ms("within", body.within)) if body.within is not None else 0
        undo_request = UndoRequest(body.limit, within_ms, seq, group_named(body.group))
        _, undone = await answer(lambda done: access_of(request).undo(queue.name, undo_request, done))
        return JsonResponse(undone._asdict())

    async def redrive(self, request: Request) -> Response:
        """POST redrive: move dead letters, or the one with `id`, back to their own queues or to the queue in `to`."""
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        body = await read_typed(request, request.receive, self._settings.json_bytes_max, Redrive)
        target = parse_queue_name(body.to, queue.name.project) if body.to else None
        seq = _seq_of(queue, body.id) if body.id is not None else 0
        _, redriven = await answer(lambda done: access_of(request).redrive(queue.name, target, body.limit, done, seq))
        if body.id is not None and not redriven.moved and not redriven.stayed:
            raise missing(queue, body.id)
        return JsonResponse({"moved": redriven.moved, "stayed": redriven.stayed, "more": redriven.more})


async def _set(request: Request, queue: Queue, changes: dict[str, bool]) -> Response:
    """Set these options of a queue; the reply says what is paused now."""
    await answer(lambda done: access_of(request).declare(queue.name, changes, done))
    return JsonResponse({"paused": queue.options.paused, "publish_paused": queue.options.publish_paused})


def _seq_of(queue: Queue, message_id: str) -> int:
    seq = queue.parse_id(message_id)
    if not seq:
        raise missing(queue, message_id)
    return seq
