"""Staged transactions over HTTP: parts are written to disk, and a commit publishes all of them or none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from curbstone.access.rights import Right
from curbstone.core.errors import AlreadyCommitted
from curbstone.core.names import queue_name
from curbstone.core.port_staging import StagedPart, Upload
from curbstone.core.traffic import Traffic
from curbstone.core.values import PART_BYTES_MAX, TTL_MS_MAX
from curbstone.gateway.formats.ndjson import Lines
from curbstone.gateway.http.body import check_length, pieces_of
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.typed_body import Body, read_typed, rule
from curbstone.gateway.resources.messages.publishing import metered
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.rate_limit import Meter
    from curbstone.core.port import Queue

BINARY = "application/vnd.curbstone.batches"
LINES = "application/x-ndjson"


class Commit(Body):
    """The body of a commit: the parts to publish, and what a transaction of a series is about."""

    what = "a commit"

    parts: Annotated[list[str] | None, rule("a list of the names of parts")] = None
    content: Annotated[str, rule("text")] = ""


class Transactions:
    """The handlers of `/v2/{project}/transactions/{id}` and the paths below it."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def put_part(self, request: Request) -> Response:
        """PUT: stage a part; answered when it is on disk."""
        project, identifier = _names(request)
        kind = _content_type(request)
        if kind not in (BINARY, LINES):
            raise Problem(415, f"a part is {BINARY} or {LINES}")
        check_length(request, PART_BYTES_MAX)
        meter = metered(request)
        try:
            staging = access_of(request).staging
            name, bytes_max = request.path_params["part"], self._settings.max_message_size
            ttl_ms_max = round(self._settings.max_ttl_s * 1000) or TTL_MS_MAX
            upload = staging.upload(project, identifier, name, bytes_max, ttl_ms_max=ttl_ms_max)
            try:
                lines = self._lines(access_of(request), project) if kind == LINES else None
                part = await _read(upload, lines, request.receive, meter)
            finally:
                upload.cancel()
        except AlreadyCommitted as error:
            raise _committed(error) from None
        return JsonResponse({"messages": part.messages, "bytes": part.size})

    def _lines(self, access: AuthorizedBroker, project: str) -> Lines:
        def find(name: str) -> Queue:
            return access.queue(queue_name(name, project), Right.SEND)

        settings = self._settings
        return Lines(find, settings.frame_bytes_max, settings.max_message_size, settings.max_ttl_s)

    async def commit(self, request: Request) -> Response:
        """POST: publish the staged parts, all or nothing; answered when they are on disk."""
        project, identifier = _names(request)
        body = await read_typed(request, request.receive, self._settings.json_bytes_max, Commit)
        commit = partial(access_of(request).staging.commit, project, identifier, body.parts, content=body.content)
        _, repeated, messages = await answer(commit)
        if not repeated:
            self._traffic.published += messages
            self._traffic.confirmed += messages
        return JsonResponse({"committed": True, "repeated": repeated, "messages": messages})

    async def get(self, request: Request) -> Response:
        """GET: the transaction's state and its parts."""
        state, parts, messages = access_of(request).staging.status(*_names(request))
        listed = [{"part": name, "messages": count, "bytes": size} for name, count, size in parts]
        return JsonResponse({"state": state.value, "parts": listed, "messages": messages})

    async def delete(self, request: Request) -> Response:
        """DELETE: drop the staged parts; the same reply if there are none."""
        project, identifier = _names(request)
        try:
            await answer(lambda done: access_of(request).staging.drop(project, identifier, done))
        except AlreadyCommitted as error:
            raise _committed(error) from None
        return Response(status_code=204)


async def _read(upload: Upload, lines: Lines | None, receive: Receive, meter: Meter | None) -> StagedPart:
    """Stage a body as it arrives, no faster than the disk accepts it, and return the part.

    The bytes of the body count for the user's rate.
    """
    received = 0
    async for piece in pieces_of(receive):
        received += len(piece)
        if meter is not None:
            meter.count(0, len(piece))
        if received > PART_BYTES_MAX:
            raise Problem(413, f"a part has at most {PART_BYTES_MAX} bytes")
        upload.feed(lines.feed(piece) if lines is not None else piece)
        if upload.is_behind:
            await answer(upload.when_written)
    if lines is not None:
        upload.feed(lines.end())
    part: StagedPart
    _, part = await answer(upload.finish)
    return part


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["project"], request.path_params["id"]


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _committed(error: AlreadyCommitted) -> Problem:
    return Problem(409, str(error), members={"committed": True}, error=error)
