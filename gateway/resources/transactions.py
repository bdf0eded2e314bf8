"""Staged transactions over HTTP: parts that are put on disk, and a commit that publishes them all at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.errors import AlreadyCommitted
from curbstone.core.names import queue_name
from curbstone.core.port_staging import StagedPart, Upload
from curbstone.core.traffic import Traffic
from curbstone.core.values import PART_BYTES_MAX, TTL_MS_MAX
from curbstone.gateway.formats.ndjson import Lines
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.body import check_length, pieces_of
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.reply import reply, reply_json
from curbstone.gateway.http.typed_body import Body, read_typed, rule
from curbstone.gateway.resources.incoming import metered
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.rates import Meter
    from curbstone.core.port import Queue

BINARY = "application/vnd.curbstone.batches"
LINES = "application/x-ndjson"


class Commit(Body):
    """Which parts are published."""

    what = "a commit"

    parts: Annotated[list[str] | None, rule("a list of the names of parts")] = None


class Transactions:
    """The handlers of `/v2/{project}/transactions/{id}` and what is below."""

    def __init__(self, settings: GatewaySettings, traffic: Traffic) -> None:
        self._settings = settings
        self._traffic = traffic

    async def put_part(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT: stage a part; answered when it is on disk."""
        project, identifier = _names(scope)
        kind = _content_type(scope)
        if kind not in (BINARY, LINES):
            raise Problem(415, f"a part is {BINARY} or {LINES}")
        check_length(scope, PART_BYTES_MAX)
        meter = metered(scope)
        try:
            staging = access_of(scope).staging
            name, bytes_max = scope["path_params"]["part"], self._settings.max_message_size
            ttl_ms_max = round(self._settings.max_ttl_s * 1000) or TTL_MS_MAX
            upload = staging.upload(project, identifier, name, bytes_max, ttl_ms_max=ttl_ms_max)
            try:
                lines = self._lines(access_of(scope), project) if kind == LINES else None
                part = await _read(upload, lines, receive, meter)
            finally:
                upload.cancel()
        except AlreadyCommitted as error:
            raise _committed(error) from None
        if meter is not None:
            meter.count(part.messages, 0)
        await reply_json(send, {"messages": part.messages, "bytes": part.size})

    def _lines(self, access: Access, project: str) -> Lines:
        def find(name: str) -> Queue:
            return access.queue(queue_name(name, project), Right.SEND)

        settings = self._settings
        return Lines(find, settings.frame_bytes_max, settings.max_message_size, settings.max_ttl_s)

    async def commit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: publish what is staged, all or nothing; answered when it is on disk."""
        project, identifier = _names(scope)
        asked = await read_typed(scope, receive, self._settings.json_bytes_max, Commit)
        commit = partial(access_of(scope).staging.commit, project, identifier, asked.parts)
        _, repeated, messages = await answer(commit)
        if not repeated:
            self._traffic.published += messages
            self._traffic.confirmed += messages
        await reply_json(send, {"committed": True, "repeated": repeated, "messages": messages})

    async def get(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: what there is of it."""
        state, parts, messages = access_of(scope).staging.look(*_names(scope))
        listed = [{"part": name, "messages": count, "bytes": size} for name, count, size in parts]
        await reply_json(send, {"state": state.value, "parts": listed, "messages": messages})

    async def delete(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """DELETE: drop what is staged; the same reply if nothing is."""
        project, identifier = _names(scope)
        try:
            await answer(lambda done: access_of(scope).staging.drop(project, identifier, done))
        except AlreadyCommitted as error:
            raise _committed(error) from None
        await reply(send, 204)


async def _read(upload: Upload, lines: Lines | None, receive: Receive, meter: Meter | None) -> StagedPart:
    """Stage a body as it comes, no faster than the disk takes it; return the part. What comes counts for the rate."""
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


def _names(scope: Scope) -> tuple[str, str]:
    path = scope["path_params"]
    return path["project"], path["id"]


def _content_type(scope: Scope) -> str:
    value: bytes = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return value.decode("latin-1").partition(";")[0].strip().lower()


def _committed(error: AlreadyCommitted) -> Problem:
    return Problem(409, str(error), members={"committed": True})
