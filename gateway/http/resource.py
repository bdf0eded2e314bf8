"""One path and its verbs: the endpoint of a `Route`. A wrong verb is answered with the list of the right ones.

Starlette's routes know methods, too, but they give each path one handler, and none for OPTIONS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from curbstone.gateway.http.problem import Problem

Handler = Callable[[Request], Awaitable[Response]]


class Verbs:
    """The verbs of a path, each with a handler that is an ASGI application: for requests that are frequent.

    HEAD is GET without the body, which the HTTP server leaves out. OPTIONS lists the verbs, unless it has a handler.
    """

    def __init__(self, **verbs: ASGIApp) -> None:
        self._verbs = dict(verbs)
        if "GET" in verbs:
            self._verbs["HEAD"] = verbs["GET"]
        self.has_own_options = "OPTIONS" in verbs
        """Whether OPTIONS has a handler of its own here."""
        self._verbs.setdefault("OPTIONS", _responding(self._options))
        self.allow = ", ".join(self._verbs)

    def __call__(self, verb: str) -> ASGIApp:
        """Return the handler of a verb; raise Problem 405."""
        handler = self._verbs.get(verb)
        if handler is None:
            raise Problem(405, f"{verb} is not allowed here", ((b"allow", self.allow.encode()),))
        return handler

    async def _options(self, _request: Request) -> Response:
        return Response(status_code=204, headers={"allow": self.allow})


class Resource(Verbs):
    """The verbs of a path, each with a handler that takes a `Request` and returns a `Response`."""

    def __init__(self, **verbs: Handler) -> None:
        super().__init__(**{verb: _responding(handler) for verb, handler in verbs.items()})


def _responding(handler: Handler) -> ASGIApp:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    return respond
