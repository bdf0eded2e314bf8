"""A short way to the resources that are called for every message.

The routes of raw resources are in the application's table like all others, and can be reached through it. But for them
routing and middleware would cost more than their own work. So requests are matched against them first, and the results
are remembered, because the same few paths come again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from curbstone.gateway.http.resource import RawResource

Way = tuple[ASGIApp, dict[str, Any]]
"""The handler, and the path parameters of its route."""

KNOWN_MAX = 1000
_PATH_CHARS_MAX = 400
"""The longest path that is remembered. No path to a queue is longer."""


class HotPaths:
    """The raw resources of a table of routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, route.endpoint.raw) for route in routes if isinstance(route.endpoint, RawResource)]
        self._known: dict[tuple[str, str], Way] = {}

    def find(self, scope: Scope) -> Way | None:
        """Return the handler of a request; None if its path is not hot, or has no handler for its verb."""
        path: str = scope["path"]
        key = (scope["method"], path)
        way = self._known.get(key)
        if way is None:
            way = self._match(scope)
            if way is not None and len(path) <= _PATH_CHARS_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = way
        return way

    def _match(self, scope: Scope) -> Way | None:
        for route, handlers in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                handler = handlers.get(scope["method"])
                return (handler, found["path_params"]) if handler is not None else None
        return None
