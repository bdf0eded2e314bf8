"""The responses of handlers, beside Starlette's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response

from curbstone.gateway.http.reply import OPAQUE, Header

FRESH = {"cache-control": "no-store"}
"""Of what is true now, and may not be a moment later."""


class JsonResponse(Response):
    """A value as JSON; bytes are taken for JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See `Response`."""
        return content if isinstance(content, bytes) else orjson.dumps(content)


class MessageResponse(Response):
    """A message: its metadata are header fields as they stand, and no browser takes it for a page."""

    def __init__(self, fields: Iterable[Header], body: bytes) -> None:
        super().__init__(body)
        self.raw_headers = [*fields, *OPAQUE, *self.raw_headers]
