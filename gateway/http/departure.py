"""Whether the client of a request is still there to be answered."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive

from curbstone.gateway.http.scope import AnyScope

GONE = "is_gone"
"""Under this name the state of a request has what `is_gone` asks."""


def is_gone(scope: AnyScope) -> bool:
    """Return whether the client of a request has closed the connection; the server's transport says so."""
    says: Callable[[], bool] | None = scope.get("state", {}).get(GONE)
    return says is not None and says()


def is_wanted(scope: AnyScope) -> Callable[[], bool]:
    """Return what tells at any time whether a client is still there to be answered."""
    return lambda: not is_gone(scope)


async def until_gone(receive: Receive) -> None:
    """Return when the client has left; what is there of a body is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
