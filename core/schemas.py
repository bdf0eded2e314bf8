"""JSON Schemas for the bodies that come into a queue, as the engine sees them: text in, a rule for bodies out.

The code that understands schemas comes from outside (`curbstone.schemas`), because the engine uses only the standard
library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from curbstone.core.errors import CurbstoneError, NotSupported

Rule = Callable[[bytes], CurbstoneError | None]
"""Returns why a body may not come in, or None."""


class Schemas(Protocol):
    """Makes rules of schemas."""

    def rule(self, schema: str) -> Rule:
        """Return the rule of a JSON Schema; raise BadRequest if it can't be used, NotSupported if no schema can."""


class NoSchemas:
    """The `Schemas` of an engine that can't use any."""

    def rule(self, schema: str) -> Rule:
        """Raise NotSupported."""
        raise NotSupported("the option schema needs a package that is not installed: pip install 'curbstone[schema]'")


class Door:
    """The rule of one queue. It is made when the first message comes, so that a start does not wait for it."""

    __slots__ = ("_rule", "_schema", "_schemas")

    def __init__(self, schemas: Callable[[], Schemas], schema: str) -> None:
        self._schemas = schemas
        self._schema = schema
        self._rule: Rule | None = None

    def refusal(self, body: bytes) -> CurbstoneError | None:
        """Return why a body may not come in, or None. If the schema can't be used, no body may."""
        if self._rule is None:
            try:
                self._rule = self._schemas().rule(self._schema)
            except CurbstoneError as error:
                return error
        return self._rule(body)
