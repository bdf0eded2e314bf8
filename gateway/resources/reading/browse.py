"""Browsing over HTTP: pages of messages by position. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.filters import Filter, fields_of
from curbstone.core.frames import decode_frame, encode_frames, pick, strip
from curbstone.core.message import Message
from curbstone.core.positions import Frame, Wanted
from curbstone.gateway.formats import arrow_stream
from curbstone.gateway.formats.message_json import body_json, metadata_json
from curbstone.gateway.formats.parameters import SEQ_MAX, group_of, query_of, whole_number
from curbstone.gateway.http.answer_budget import wait_for_budget
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.responses import FRESH
from curbstone.gateway.limits import MIB, PAGE_BYTES_MAX, PAGE_MESSAGES_MAX
from curbstone.gateway.resources.messages.searching import filter_in
from curbstone.gateway.resources.queues.queues import name_in

if TYPE_CHECKING:
    from curbstone.core.port import Queue

BINARY = "application/vnd.curbstone.batches"
NDJSON = "application/x-ndjson"
LIMIT = 10_000
PAGE_BYTES = 4 * MIB
_FLAGS = {"true": True, "false": False}


class Browse:
    """The handler of `/v2/{project}/queues/{queue}/browse`."""

    async def get(self, request: Request) -> Response:
        """GET: a page of messages. The header `Next-Offset` says where the next page begins.

        With a filter, the limits apply to the scanned messages, and the page has only the messages that pass.
        """
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        queue.reading.check_epoch(query.get("epoch"))
        group = group_of(query) or None
        first = queue.reading.position(group) if group else queue.reading.first()
        wanted = Wanted(
            whole_number("from", query.get("from", first), 0, SEQ_MAX),
            whole_number("to", query["to"], 0, SEQ_MAX) if "to" in query else None,
            whole_number("limit", query.get("limit", LIMIT), 1, PAGE_MESSAGES_MAX),
            whole_number("max_bytes", query.get("max_bytes", PAGE_BYTES), 1, PAGE_BYTES_MAX),
            group,
        )
        kind = _kind(request, query)
        passing = filter_in(query)
        if passing is not None:
            wanted = wanted._replace(limit=min(wanted.limit, passing.messages_at_once))
        await wait_for_budget(request, wanted.bytes_max)
        render = _renderer(queue, kind, passing, headers=_flag(query, "headers"), body=_flag(query, "body"))
        page: tuple[bytes, dict[str, str]]
        _, page, next_seq = await answer(partial(queue.reading.browse, wanted, render))
        body, digest = page
        return Response(body, headers=page_headers(queue, kind, next_seq) | digest)


def _kind(request: Request, query: Mapping[str, str]) -> str:
    """Return the type of the page that the client wants."""
    wanted = query.get("format", "")
    if wanted not in ("", "arrow"):
        raise BadRequest(f"bad format {wanted[:80]!r}: arrow, or leave it out")
    if wanted or accepts(request, arrow_stream.MEDIA_TYPE):
        if not arrow_stream.is_installed():
            raise Problem(406, "pages in Arrow need pyarrow beside the server: pip install pyarrow")
        return arrow_stream.MEDIA_TYPE
    return BINARY if accepts(request, BINARY) else NDJSON


def accepts(request: Request, kind: str) -> bool:
    """Return whether the client names this type in Accept; wildcards do not count, because it is not the default."""
    return any(kind in value.lower() for value in request.headers.getlist("accept"))


def page_headers(queue: Queue, kind: str, following: int) -> dict[str, str]:
    """Return the headers of a page. The epoch changes when the queue is deleted and created again."""
    return {
        "content-type": kind,
        "next-offset": str(following),
        "x-curbstone-epoch": queue.uid,
        "x-content-type-options": "nosniff",
        **FRESH,
    }


def checksum(page: bytes) -> dict[str, str]:
    """Return the header with the checksum of a binary page."""
    return {"x-curbstone-crc32": f"{crc32(page):08x}"}


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = _FLAGS.get(query.get(name, "true"))
    if value is None:
        raise BadRequest(f"bad {name} {query[name][:80]!r}: true or false")
    return value


def _renderer(
    queue: Queue, kind: str, passing: Filter | None, *, headers: bool, body: bool
) -> Callable[[list[Frame]], tuple[bytes, dict[str, str]]]:
    """Return a function that encodes a page and returns it with its checksum header. It runs in a worker thread."""

    def render(frames: list[Frame]) -> tuple[bytes, dict[str, str]]:
        if passing is not None:
            frames = [picked for picked in [pick(frame, partial(_passes, passing)) for frame in frames] if picked.span]
        stripped = [strip(frame, headers=headers, body=body) for frame in frames]
        if kind == BINARY:
            page = encode_frames(stripped)
            return page, checksum(page)
        if kind == arrow_stream.MEDIA_TYPE:
            frames_page = encode_frames(stripped)
            page = arrow_stream.stream_of(frames_page, str(queue.name), queue.uid, headers=headers, body=body)
            return page, checksum(page)
        return b"".join([_line(queue, frame, body) for frame in stripped]), {}

    return render


def _passes(wanted: Filter, message: Message) -> bool:
    return wanted.passes(fields_of(message.headers, message.timestamp_ms))


def _line(queue: Queue, frame: Frame, body: bool) -> bytes:
    """Return the messages of a frame as lines of JSON."""
    lines = []
    for message, tries in decode_frame(frame):
        inside = metadata_json(message, queue.message_id(message.seq), tries)
        text = b"," + body_json(message.body, None) if body else b""
        lines.append(b'{"seq":%d,%b%b}\n' % (message.seq, inside, text))
    return b"".join(lines)
