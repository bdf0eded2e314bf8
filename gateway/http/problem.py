"""Errors as an HTTP client sees them: application/problem+json (RFC 9457).

The member `message` beside `detail` is what Narconi's clients read.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson

from curbstone.access.errors import NotLoggedIn, TooMany
from curbstone.core.errors import CurbstoneError, EventRefused, IsStandby
from curbstone.gateway.http.problem_types import kind_of, type_of

RETRY_AFTER_S = {503: 5, 507: 1}
"""After how many seconds to retry a request that failed because of a full or failing disk."""

Headers = tuple[tuple[bytes, bytes], ...]

CHALLENGE = (b"www-authenticate", b"Bearer")
"""Never Basic: after a Basic challenge a browser remembers the password, and sends it with the requests of any page."""


class Problem(Exception):
    """A request is refused. The status and the text say why; `members` are for programs."""

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Headers = (),
        members: Mapping[str, object] | None = None,
        error: CurbstoneError | None = None,
    ) -> None:
        super().__init__(detail)
        self.error = error
        """The engine's error; None for a problem of HTTP itself."""
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members or {}
        """More members of the JSON object."""


class ClientGone(Exception):
    """The client closed the connection before its request was answered."""


def status_of(error: Problem | CurbstoneError) -> int:
    """Return the HTTP status of an error; if several queues refused an event, the status of the first refusal."""
    if isinstance(error, Problem):
        return error.status
    if isinstance(error, EventRefused):
        return status_of(next(iter(error.refused.values())))
    kind = kind_of(error)
    return 500 if kind is None else kind.status


def problem_of(error: Problem | CurbstoneError) -> Problem:
    """Return the problem for an error of the engine."""
    if isinstance(error, Problem):
        return error
    headers: Headers = ()
    if isinstance(error, NotLoggedIn):
        headers = (CHALLENGE,)
    elif isinstance(error, TooMany):
        headers = ((b"retry-after", b"%d" % error.wait_s),)
    return Problem(status_of(error), str(error), headers, error.members, error)


def reason_of(error: Problem | CurbstoneError) -> str:
    """Return the name under which a refusal is counted; "" for the name of its class."""
    return title_of(error.status).lower().replace(" ", "_").replace("-", "_") if isinstance(error, Problem) else ""


def problem_headers(problem: Problem) -> Headers:
    """Return the headers that go with a problem's body."""
    # A client of a standby should try the other address at once.
    retry_after_s = None if isinstance(problem.error, IsStandby) else RETRY_AFTER_S.get(problem.status)
    retry = ((b"retry-after", b"%d" % retry_after_s),) if retry_after_s else ()
    return ((b"content-type", b"application/problem+json"), *retry, *problem.headers)


def problem_body(problem: Problem) -> bytes:
    """Return the problem as bytes of JSON."""
    return orjson.dumps(problem_json(problem))


def problem_json(problem: Problem) -> dict[str, object]:
    """Return the problem as a JSON object."""
    return {
        "type": type_of(problem.status, problem.error),
        "title": title_of(problem.status),
        "status": problem.status,
        "detail": problem.detail,
        "message": problem.detail,
        **problem.members,
    }


def title_of(status: int) -> str:
    """Return the reason phrase of a status, such as "Not Found"."""
    return HTTPStatus(status).phrase


def closing_response(problem: Problem) -> bytes:
    """Return a whole HTTP response that ends the connection."""
    body = problem_body(problem)
    lines = [b"HTTP/1.1 %d %b" % (problem.status, title_of(problem.status).encode())]
    lines += [name + b": " + value for name, value in problem_headers(problem)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)
