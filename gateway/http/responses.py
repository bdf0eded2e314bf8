"""Answers to requests: whole replies of two ASGI messages, and kinds of responses in addition to Starlette's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Send

from curbstone.core.errors import CurbstoneError
from curbstone.gateway.http.fields import Header
from curbstone.gateway.http.problem import Problem, problem_body, problem_headers, problem_of

NO_SNIFFING: Header = (b"x-content-type-options", b"nosniff")
"""Keeps a browser from guessing another Content-Type."""

OPAQUE: tuple[Header, ...] = (NO_SNIFFING, (b"content-security-policy", b"sandbox"), (b"cache-control", b"no-store"))
"""Headers of a reply that is a message: no browser guesses another type for it or runs it as a page, and no cache
keeps it."""

_EMPTY = {"type": "http.response.body", "body": b""}
_JSON: Header = (b"content-type", b"application/json")


async def reply(send: Send, status: int, headers: Iterable[Header] = (), body: bytes = b"") -> None:
    """Send a whole reply; a 204 has neither body nor length."""
    fields = [*headers]
    if status != 204:
        fields.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body} if body else _EMPTY)


async def reply_json(send: Send, value: object, status: int = 200, headers: Iterable[Header] = ()) -> None:
    """Send a value as JSON; bytes must be JSON already."""
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    await reply(send, status, [_JSON, *headers], body)


async def reply_problem(send: Send, error: Problem | CurbstoneError) -> None:
    """Send an error as application/problem+json."""
    problem = problem_of(error)
    await reply(send, problem.status, problem_headers(problem), problem_body(problem))


FRESH = {"cache-control": "no-store"}
"""Headers for an answer that may be out of date a moment later."""


class JsonResponse(Response):
    """A value as JSON; bytes must be JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


class MessageResponse(Response):
    """A message: its metadata are header fields, and no browser takes it for a page."""

    def __init__(self, fields: Iterable[Header], body: bytes) -> None:
        super().__init__(body)
        self.raw_headers = [*fields, *OPAQUE, *self.raw_headers]
