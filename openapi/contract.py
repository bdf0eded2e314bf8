"""The contracts that the server publishes: the files beside this one, and one of them as JSON."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

OPENAPI = "openapi.yaml"
ASYNCAPI = "asyncapi.yaml"


@cache
def text_of(name: str) -> bytes:
    """Return the text of a contract."""
    return files("curbstone.openapi").joinpath(name).read_bytes()


def parsed(name: str) -> dict[str, Any]:
    """Return a contract as a dict. Slow."""
    import yaml  # imported here for a faster start: most servers never parse a contract

    # libyaml's loader, if PyYAML was built with it, is twenty times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    contract = yaml.load(text_of(name), Loader=loader)
    assert isinstance(contract, dict)
    return contract


@cache
def openapi_json() -> bytes:
    """Return the OpenAPI contract as JSON; the first call is slow."""
    return json.dumps(parsed(OPENAPI), ensure_ascii=False, separators=(",", ":")).encode()
