"""The kinds of responses that handlers return in addition to Starlette's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response

from curbstone.gateway.http.fields import Header
from curbstone.gateway.http.responses import OPAQUE

FRESH = {"cache-control": "no-store"}
"""Headers for an answer that may be out of date a moment later."""


class JsonResponse(Response):
    """A value as JSON; bytes must be JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See `Response`."""
        return content if isinstance(content, bytes) else orjson.dumps(content)


class MessageResponse(Response):
    """A message: its metadata are header fields, and no browser takes it for a page."""

    def __init__(self, fields: Iterable[Header], body: bytes) -> None:
        super().__init__(body)
        self.raw_headers = [*fields, *OPAQUE, *self.raw_headers]
