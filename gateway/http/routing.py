"""Which handler a verb and a path lead to.

The routes are Starlette's; what they found is remembered, for the same few paths come again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from curbstone.gateway.http.problem import Problem
from curbstone.gateway.http.resource import Resource

Way = tuple[ASGIApp, dict[str, Any]]
"""The handler, and what the parts of the path are that a route names."""

KNOWN_MAX = 1000
_PATH_CHARS_MAX = 400
"""No path to a queue is longer; what is longer need not be remembered."""


class Routing:
    """The routes of an application, each to a resource, or to another ASGI application for all verbs."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._known: dict[tuple[str, str], Way] = {}

    def find(self, scope: Scope) -> Way:
        """Return where a request goes; raise Problem 404, or 405 where the path knows no such verb."""
        path: str = scope["path"]
        key = (scope["method"], path)
        way = self._known.get(key)
        if way is None:
            way = self._match(scope, path)
            if len(path) <= _PATH_CHARS_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = way
        return way

    def _match(self, scope: Scope, path: str) -> Way:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                app = route.app
                return app.handler(scope["method"]) if isinstance(app, Resource) else app, found["path_params"]
        raise Problem(404, f"there is nothing at {path[:200]!r}")
