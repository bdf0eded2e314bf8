"""The contracts, parsed once, and the operations that the one for HTTP has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from curbstone.openapi.contract import ASYNCAPI, OPENAPI, parsed

VERBS = ("delete", "get", "head", "options", "patch", "post", "put", "trace")
CONTRACT = parsed(OPENAPI)
SOCKETS = parsed(ASYNCAPI)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the path, the verb and the description of each."""
    for path, item in CONTRACT["paths"].items():
        for verb in VERBS:
            if verb in item:
                yield path, verb.upper(), item[verb]
