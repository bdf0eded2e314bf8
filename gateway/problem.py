"""Errors as an HTTP client sees them: application/problem+json (RFC 9457).

The member `message` beside `detail` is what Narconi's clients read.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson

from curbstone.core.errors import CurbstoneError

RETRY_AFTER_S = {503: 5, 507: 1}
"""When a client may try again what was refused for want of room or of a working disk."""

Headers = tuple[tuple[bytes, bytes], ...]


class Problem(Exception):
    """A request can't be answered as asked; `status` and the text say why, `members` what a program needs to know."""

    def __init__(
        self, status: int, detail: str, headers: Headers = (), members: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(detail)
        self.members = members or {}
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members or {}
        """More members of the JSON object."""


class ClientGone(Exception):
    """The client closed the connection before its request was answered; nobody is left to tell."""


def problem_of(error: Problem | CurbstoneError) -> Problem:
    """Return the problem that stands for an error of the engine."""
    return error if isinstance(error, Problem) else Problem(error.status, str(error), members=error.members)


def problem_headers(problem: Problem) -> Headers:
    """Return the headers that go with a problem's body."""
    retry_after_s = RETRY_AFTER_S.get(problem.status)
    retry = ((b"retry-after", b"%d" % retry_after_s),) if retry_after_s else ()
    return ((b"content-type", b"application/problem+json"), *retry, *problem.headers)


def problem_body(problem: Problem) -> bytes:
    """Return the problem as JSON."""
    return orjson.dumps(
        {
            "type": "about:blank",
            "title": title_of(problem.status),
            "status": problem.status,
            "detail": problem.detail,
            "message": problem.detail,
            **problem.members,
        }
    )


def title_of(status: int) -> str:
    """Return the reason phrase of a status, such as "Not Found"."""
    return HTTPStatus(status).phrase
