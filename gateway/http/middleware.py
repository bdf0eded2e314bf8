"""The gateway's middleware: the steps that every request goes through.

The functions at the end are also called by `Gateway` for hot paths, which do not go through the middleware.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.names import queue_name
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.answers import answer
from curbstone.gateway.http.head import has_wrong_slash
from curbstone.gateway.http.login import Logins, access_of
from curbstone.gateway.http.origin_policy import OriginPolicy, answer_preflight, is_preflight
from curbstone.gateway.http.problem import ClientGone, Problem, reason_of
from curbstone.gateway.http.reply import reply_problem

logger = logging.getLogger("curbstone.gateway")


class Problems:
    """Answers exceptions with problem+json."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            await answer_error(error, scope, send, self._traffic)


class Origins:
    """Refuses pages of other origins, and lets those of listed origins read the answer: see `OriginPolicy`."""

    def __init__(self, app: ASGIApp, guard: OriginPolicy) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise Problem 421 or 403."""
        send = self._guard.admit(scope, send)
        if is_preflight(scope):
            await answer_preflight(scope, send)
        else:
            await self._app(scope, receive, send)


class Names:
    """Refuses names that could be read in two ways."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise Problem 400."""
        check_names(scope)
        await self._app(scope, receive, send)


class Login:
    """Logs the client in; after this, `access_of` returns its access."""

    def __init__(self, app: ASGIApp, logins: Logins) -> None:
        self._app = app
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise NotLoggedIn, TooMany or Busy."""
        await self._logins.admit(scope)
        await self._app(scope, receive, send)


class FreshQueues:
    """Looks, on a cluster, whether another server has made the queue in the path, if it is not known here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await look_for_queue(scope)
        await self._app(scope, receive, send)


def check_names(scope: Scope) -> None:
    """Raise Problem 400 for a slash inside a name, except that of an event."""
    if has_wrong_slash(scope["path"]):
        raise Problem(400, "only the name of an event can hold a slash, as %2F")


async def look_for_queue(scope: Scope) -> None:
    """If a request's queue is not known, learn of the queues that other servers have made just now."""
    path = scope["path_params"]
    if "queue" not in path:
        return
    access = access_of(scope)
    with suppress(BadRequest):  # the resource reports it, in its own way
        if access.may_be_new(queue_name(path["queue"], path.get("project", access.home))):
            await answer(access.catch_up)


async def answer_error(error: Exception, scope: Scope, send: Send, traffic: Traffic) -> None:
    """Count the error that ended a request, and answer with it. Must be called while it is being handled."""
    if isinstance(error, Problem | CurbstoneError):
        traffic.refuse(error, reason_of(error))
        await reply_problem(send, error)
    elif not isinstance(error, ClientGone):
        logger.exception("%s %r failed", scope["method"], scope["path"])
        await reply_problem(send, Problem(500, "an error in the server; its log has more"))
