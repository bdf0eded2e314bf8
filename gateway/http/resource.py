"""One path and its verbs: the endpoint of a `Route`. A wrong verb is answered with the list of the right ones.

Starlette's routes know methods, too, but they give each path one handler, and none for OPTIONS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from curbstone.gateway.http.problem import Problem

Handler = Callable[[Request], Awaitable[Response]]


class Verbs:
    """An ASGI application that hands each request to the handler of its verb.

    HEAD is GET without the body, which the HTTP server leaves out. OPTIONS lists the verbs, unless it has a handler.
    """

    def __init__(self, verbs: dict[str, ASGIApp]) -> None:
        self._verbs = dict(verbs)
        if "GET" in verbs:
            self._verbs["HEAD"] = verbs["GET"]
        self.has_own_options = "OPTIONS" in verbs
        """Whether OPTIONS has a handler of its own here."""
        self._verbs.setdefault("OPTIONS", request_response(self._options))
        self.allow = ", ".join(self._verbs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise Problem 405."""
        app = self._verbs.get(scope["method"])
        if app is None:
            raise Problem(405, f"{scope['method']} is not allowed here", ((b"allow", self.allow.encode()),))
        await app(scope, receive, send)

    async def _options(self, _request: Request) -> Response:
        return Response(status_code=204, headers={"allow": self.allow})


class Resource(Verbs):
    """A resource whose handlers take a `Request` and return a `Response`."""

    def __init__(self, **verbs: Handler) -> None:
        super().__init__({verb: request_response(handler) for verb, handler in verbs.items()})


class RawResource(Verbs):
    """A resource whose handlers are ASGI applications, for requests that come for every message: see `HotPaths`."""

    def __init__(self, **verbs: ASGIApp) -> None:
        super().__init__(verbs)
        self.raw = {verb: app for verb, app in self._verbs.items() if verb != "OPTIONS"}
        """The handlers by verb."""
