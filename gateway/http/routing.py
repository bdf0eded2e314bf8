"""Finds the handler of a request by its path and its verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

Found = tuple[ASGIApp, dict[str, Any]]
"""The handler, and the path parameters of its route."""

KNOWN_MAX = 1000
_PATH_CHARS_MAX = 400
"""The longest path that is remembered. No path to a queue is longer."""


class Routes:
    """A table of routes, whose endpoints are `Verbs`. Results are remembered: few paths are in use at a time."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._known: dict[tuple[str, str], Found] = {}

    def find(self, scope: Scope) -> Found | None:
        """Return the handler of a request, or None if nothing is at its path; raise Problem 405 for a wrong verb."""
        path: str = scope["path"]
        key = (scope["method"], path)
        found = self._known.get(key)
        if found is None:
            found = self._match(scope)
            if found is not None and len(path) <= _PATH_CHARS_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = found
        return found

    def _match(self, scope: Scope) -> Found | None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route.endpoint(scope["method"]), found["path_params"]
        return None
