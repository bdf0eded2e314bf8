"""What a request is to those who only read its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AnyScope = Mapping[str, Any]
"""An ASGI scope, which the hot paths are given, or Starlette's Request, which reads like one."""
