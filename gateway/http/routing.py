"""Which resource a path leads to.

The routes are Starlette's; what they found is remembered, for the same few paths come again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from curbstone.gateway.http.problem import Problem

Way = tuple[ASGIApp, dict[str, Any]]
"""The resource, and what the parts of the path are that a route names."""

KNOWN_MAX = 1000
_PATH_CHARS_MAX = 400
"""No path to a queue is longer; what is longer need not be remembered."""


class Routing:
    """The routes of an application, each for all verbs."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._known: dict[str, Way] = {}

    def find(self, scope: Scope) -> Way:
        """Return where a request goes; raise Problem 404."""
        path: str = scope["path"]
        way = self._known.get(path)
        if way is None:
            way = self._match(scope, path)
            if len(path) <= _PATH_CHARS_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[path] = way
        return way

    def _match(self, scope: Scope, path: str) -> Way:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route.app, found["path_params"]
        raise Problem(404, f"there is nothing at {path[:200]!r}")
