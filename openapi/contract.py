"""The contracts as the server hands them out: the files beside this one, and one of them as JSON."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

OPENAPI = "openapi.yaml"
ASYNCAPI = "asyncapi.yaml"


@cache
def text_of(name: str) -> bytes:
    """Return a contract as it was written."""
    return files("curbstone.openapi").joinpath(name).read_bytes()


def parsed(name: str) -> dict[str, Any]:
    """Return a contract as a dict; takes a while."""
    import yaml  # only now: most servers are never asked, and all of them have to start

    # libyaml's is twenty times as fast, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    contract = yaml.load(text_of(name), Loader=loader)
    assert isinstance(contract, dict)
    return contract


@cache
def openapi_json() -> bytes:
    """Return the OpenAPI contract as JSON; takes a while the first time."""
    return json.dumps(parsed(OPENAPI), ensure_ascii=False, separators=(",", ":")).encode()
