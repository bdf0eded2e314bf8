"""The shortest way to what is called for every message.

The routes of raw resources stand in the application's table like all others, and may be reached through it. But for
them routing and middleware would cost more than what they do. So they are found here first, and what was found is
remembered: the same few paths come again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from curbstone.gateway.http.resource import RawResource

Way = tuple[ASGIApp, dict[str, Any]]
"""The handler, and what the parts of the path are that a route names."""

KNOWN_MAX = 1000
_PATH_CHARS_MAX = 400
"""No path to a queue is longer; what is longer need not be remembered."""


class HotPaths:
    """The raw resources of a table of routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, route.endpoint.raw) for route in routes if isinstance(route.endpoint, RawResource)]
        self._known: dict[tuple[str, str], Way] = {}

    def find(self, scope: Scope) -> Way | None:
        """Return where a request goes; None for what is not hot, a wrong verb among that."""
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
