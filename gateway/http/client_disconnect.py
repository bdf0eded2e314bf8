"""Whether the client of a request is still there to be answered."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive

from curbstone.gateway.http.scope import AnyScope

GONE = "is_gone"
"""The key in a request's `state` under which the HTTP server puts a function that tells whether its client is gone."""


def is_gone(scope: AnyScope) -> bool:
    """Return whether the client of a request has closed the connection."""
    says: Callable[[], bool] | None = scope.get("state", {}).get(GONE)
    return says is not None and says()


def is_wanted(scope: AnyScope) -> Callable[[], bool]:
    """Return a function that tells, at any time, whether the client is still there to be answered."""
    return lambda: not is_gone(scope)


async def until_gone(receive: Receive) -> None:
    """Return when the client has left; drop the rest of the body."""
    while (await receive())["type"] != "http.disconnect":
        pass
