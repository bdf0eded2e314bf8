"""Searches messages for a text. A call looks through a bounded part of the queue, and says how far it has searched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.core.frames import decode_frame
from curbstone.core.headers import escape
from curbstone.core.positions import Frame, Wanted
from curbstone.gateway.formats.parameters import encoding_of, query_of, whole_number
from curbstone.gateway.http.callbacks import answer
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.limits import MIB
from curbstone.gateway.resources.messages.message import find_message
from curbstone.gateway.resources.messages.messages import peeked_json
from curbstone.gateway.resources.queues.queues import name_in

SEARCH_BYTES_MAX = 16 * MIB
"""The most that one call looks through."""
PAGE_BYTES = 2 * MIB
PAGE_MESSAGES = 10_000
FOUND_MAX = 100
TEXT_CHARS_MAX = 1000


class Searched(NamedTuple):
    """What a page has: how many messages and bytes, and the seqs of those with the text."""

    messages: int
    bytes: int
    found: list[int]


class Search:
    """The handler of `/v2/{project}/queues/{queue}/search`."""

    async def get(self, request: Request) -> Response:
        """GET: messages whose body or headers have a text in them, and where to continue."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        text = query.get("text", "")
        if not 0 < len(text) <= TEXT_CHARS_MAX:
            raise BadRequest(f"bad text: 1 to {TEXT_CHARS_MAX} characters expected")
        limit = whole_number("limit", query.get("limit", FOUND_MAX), 1, FOUND_MAX)
        after = query.get("after", "")
        seq = queue.parse_id(after) if after else 0
        if seq is None:
            raise BadRequest(f"bad after {after[:80]!r}: it is not the id of a message in queue {queue.name}")
        reading = queue.reading
        end, start = reading.next, seq + 1
        found: list[int] = []
        messages = size = 0
        # A page may be larger than was asked for by one message.
        while start < end and len(found) < limit and size < SEARCH_BYTES_MAX:
            bytes_max = min(PAGE_BYTES, SEARCH_BYTES_MAX - size)
            wanted = Wanted(max(start, reading.first()), end, PAGE_MESSAGES, bytes_max)
            searched: Searched
            _, searched, start = await answer(partial(reading.browse, wanted, searcher(text)))
            messages, size, found = messages + searched.messages, size + searched.bytes, found + searched.found
        if len(found) > limit:
            start = found[limit]
        peeked = [await find_message(queue, queue.message_id(each)) for each in found[:limit]]
        encoding = encoding_of(query)
        texts = [peeked_json(queue, each, encoding) for each in peeked if each is not None]
        more = b',"next":"%b"' % queue.message_id(start - 1).encode() if start < end else b""
        looked_at = b'"looked":{"messages":%d,"bytes":%d}' % (messages, size)
        return JsonResponse(b'{"messages":[%b],%b%b}' % (b",".join(texts), looked_at, more))


def searcher(text: str) -> Callable[[list[Frame]], Searched]:
    """Return a function that looks for a text, whatever the case of ASCII letters. It runs on a worker thread."""
    in_body, in_headers = text.encode().lower(), escape(text).encode().lower()

    def search(frames: list[Frame]) -> Searched:
        messages = size = 0
        found: list[int] = []
        for frame in frames:
            messages += frame.span if frame.mask is None else frame.mask.bit_count()
            size += len(frame.entries)
            entries = bytes(frame.entries).lower()
            if in_body not in entries and in_headers not in entries:  # most frames need not be decoded
                continue
            for message, _ in decode_frame(frame):
                if in_body in message.body.lower() or in_headers in message.headers.lower():
                    found.append(message.seq)
        return Searched(messages, size, found)

    return search
