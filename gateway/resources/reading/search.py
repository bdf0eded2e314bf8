"""Searches messages for a text, or by a filter on their headers; see `gateway.resources.messages.searching`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.parameters import encoding_of, query_of, whole_number
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.resources.messages.messages import peeked_json
from curbstone.gateway.resources.messages.searching import after_in, filter_in, progress_json, search_through, searcher
from curbstone.gateway.resources.queues.queues import name_in

FOUND_MAX = 100
TEXT_CHARS_MAX = 1000


class Search:
    """The handler of `/v2/{project}/queues/{queue}/search`."""

    async def get(self, request: Request) -> Response:
        """GET: messages that have a text in body or headers, or pass a filter, or both; and where to continue."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        query = query_of(request)
        text, wanted = query.get("text", ""), filter_in(query)
        if len(text) > TEXT_CHARS_MAX or not (text or wanted):
            raise BadRequest(f"bad text: 1 to {TEXT_CHARS_MAX} characters expected, or none with a filter")
        limit = whole_number("limit", query.get("limit", FOUND_MAX), 1, FOUND_MAX)
        search = searcher(text, wanted)
        found = await search_through(queue, search, after=after_in(query, queue), limit=limit, wanted=wanted)
        encoding = encoding_of(query)
        texts = [peeked_json(queue, each, encoding) for each in found.messages]
        return JsonResponse(b'{"messages":[%b]%b}' % (b",".join(texts), progress_json(queue, found)))
