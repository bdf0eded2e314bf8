"""One path and its verbs: a wrong verb is answered with those there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.reply import reply

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


class Resource:
    """An ASGI application that hands a request to the handler of its verb.

    HEAD is GET without the body, which the HTTP server leaves out. A plain OPTIONS names the verbs.
    """

    def __init__(self, **verbs: Handler) -> None:
        self._verbs = verbs
        if "GET" in verbs:
            verbs["HEAD"] = verbs["GET"]
        self.has_own_options = "OPTIONS" in verbs
        """Whether OPTIONS does something here that it does not do everywhere."""
        verbs.setdefault("OPTIONS", self._options)
        self.allow: tuple[bytes, bytes] = (b"allow", ", ".join(verbs).encode())

    def handler(self, method: str) -> Handler:
        """Return that of a verb; raise Problem 405."""
        handler = self._verbs.get(method)
        if handler is None:
            raise Problem(405, f"{method} is not allowed here", (self.allow,))
        return handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `Routing` spares this step."""
        await self.handler(scope["method"])(scope, receive, send)

    async def _options(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, 204, [self.allow])
