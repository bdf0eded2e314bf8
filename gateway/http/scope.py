"""The type of a request for functions that only read its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AnyScope = Mapping[str, Any]
"""An ASGI scope, which hot paths are given, or Starlette's Request, which can be read like one."""
