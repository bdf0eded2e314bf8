"""The type of a request for functions that only read its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AnyScope = Mapping[str, Any]
"""An ASGI scope, which hot paths are given, or Starlette's Request, which can be read like one."""

BASE = "base"
"""The key in a request's scope for the path that the gateway is mounted at; missing if that is the root."""


def base_of(scope: AnyScope) -> str:
    """Return the path that the gateway is mounted at, such as "/queues"; "" for the root."""
    base: str = scope.get(BASE, "")
    return base
