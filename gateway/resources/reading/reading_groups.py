"""Declared groups over HTTP: they read messages by position, and one ack settles all messages up to a position."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.names import group_name
from curbstone.core.positions import EARLIEST, LATEST, GroupInfo, Since, Start
from curbstone.gateway.formats.parameters import SEQ_MAX, whole_number
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.typed_body import Body, OptionalText, read_typed, rule, whole
from curbstone.gateway.resources.queues.queues import name_in
from curbstone.gateway.settings import GatewaySettings

Reader = Annotated[str, rule("1 to 64 of A-Z a-z 0-9 . _ : -", pattern=r"\A[A-Za-z0-9._:-]{1,64}\Z")]


class GroupDeclaration(Body):
    """The body of a declaration: where the group begins, and whether it holds or skips messages at the cap."""

    what = "a group"

    start: Annotated[Any, rule('earliest, latest, a seq, or {"timestamp": ms}')] = EARLIEST
    on_full: Annotated[Literal["hold", "skip"] | msgspec.UnsetType, rule("hold or skip")] = msgspec.UNSET


class AckRequest(Body):
    """The body of an ack: the last settled message, and the epoch of the queue."""

    what = "an ack"

    up_to: Annotated[int, whole(0, SEQ_MAX, "the last message to settle")] = msgspec.field(name="upTo")
    epoch: OptionalText = None


class ReaderAckRequest(AckRequest):
    """The body of an ack from one of several programs that read as the group."""

    reader: Reader = ""


class ReadingGroups:
    """The handlers of `/v2/{project}/queues/{queue}/groups` and the paths below it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def list(self, request: Request) -> Response:
        """GET: all groups that are declared or have messages waiting, by name."""
        reading = access_of(request).queue(name_in(request), Right.PEEK).reading
        return JsonResponse({"groups": [_json(info) for info in reading.infos()]})

    async def get(self, request: Request) -> Response:
        """GET: one group."""
        reading = access_of(request).queue(name_in(request), Right.PEEK).reading
        return JsonResponse(_json(reading.info(_group_in(request))))

    async def put(self, request: Request) -> Response:
        """PUT: declare the group, or change its behaviour at the cap."""
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        name = _group_in(request)
        declared = await read_typed(request, request.receive, self._settings.json_bytes_max, GroupDeclaration)
        skips = None if declared.on_full is msgspec.UNSET else declared.on_full == "skip"
        info: GroupInfo
        _, info = await answer(partial(queue.reading.declare, name, _start_of(declared.start), skips))
        return JsonResponse(_json(info))

    async def delete(self, request: Request) -> Response:
        """DELETE: end the group's declaration; the same reply if it was not declared."""
        queue = access_of(request).queue(name_in(request), Right.MANAGE)
        name = _group_in(request)
        if queue.reading.is_declared(name):
            others = [group for group in queue.options.groups if group != name]
            await answer(lambda done: access_of(request).declare(queue.name, {"groups": others}, done))
        return Response(status_code=204)

    async def ack(self, request: Request) -> Response:
        """POST ack: settle everything up to `upTo` for the group; answered after the commit."""
        queue = access_of(request).queue(name_in(request), Right.RECEIVE)
        name = _group_in(request)
        ack = await read_typed(request, request.receive, self._settings.json_bytes_max, ReaderAckRequest)
        queue.reading.check_epoch(ack.epoch)
        info: GroupInfo
        _, info = await answer(partial(queue.reading.ack_to, name, ack.up_to, reader=ack.reader))
        return JsonResponse(_json(info))


def _group_in(request: Request) -> str:
    return group_name(request.path_params["group"])


def _json(info: GroupInfo) -> dict[str, object]:
    return info._asdict()


def _start_of(value: object) -> Start:
    if isinstance(value, dict):
        if list(value) != ["timestamp"]:
            raise BadRequest('bad start: an object has one member, "timestamp"')
        return Since(whole_number("timestamp", value["timestamp"], 0, SEQ_MAX))
    if value in (EARLIEST, LATEST):
        return str(value)
    if isinstance(value, str):
        raise BadRequest(f'bad start {value[:80]!r}: earliest, latest, a seq, or {{"timestamp": ms}}')
    return whole_number("start", value, 0, SEQ_MAX)
