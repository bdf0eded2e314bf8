"""JSON Schemas at the door of a queue, as the engine sees them: text in, a rule for bodies out.

What reads them comes from outside (`curbstone.schemas`): the engine knows the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from curbstone.core.errors import CurbstoneError, NotSupported

Rule = Callable[[bytes], CurbstoneError | None]
"""Returns why a body may not come in, or None."""


class Schemas(Protocol):
    """What makes rules of schemas."""

    def rule(self, schema: str) -> Rule:
        """Return the rule of a JSON Schema; raise BadRequest for one that can't be used, NotSupported for all."""


class NoSchemas:
    """See `Schemas`: none can be used here."""

    def rule(self, schema: str) -> Rule:
        """Raise NotSupported."""
        raise NotSupported("the option schema needs a package that is not installed: pip install 'curbstone[schema]'")


class Door:
    """The rule of one queue, made when the first message comes: a start, and a queue without a schema, need none."""

    __slots__ = ("_rule", "_schema", "_schemas")

    def __init__(self, schemas: Callable[[], Schemas], schema: str) -> None:
        self._schemas = schemas
        self._schema = schema
        self._rule: Rule | None = None

    def refusal(self, body: bytes) -> CurbstoneError | None:
        """Return why a body may not come in, or None. Where the schema can't be used nothing may."""
        if self._rule is None:
            try:
                self._rule = self._schemas().rule(self._schema)
            except CurbstoneError as error:
                return error
        return self._rule(body)
