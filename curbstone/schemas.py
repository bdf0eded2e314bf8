"""JSON Schemas for the engine, on jsonschema-rs, which is imported when a queue has one.

A schema comes from whoever may manage a queue, and bodies from whoever may publish to it; neither may hold up the
server. So it refers to nothing outside of itself, has no patterns that take longer than a pass over the text, and is
bounded with all its references put in: one to itself, or a few that double each time, would make a small body take for
ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.core.errors import BadRequest, CurbstoneError, SchemaViolation
from curbstone.core.schemas import NoSchemas, Rule

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

PARTS_MAX = 2000
"""Objects and lists of a schema, those of what it refers to counted each time."""
DEPTH_MAX = 64
PATTERN_BYTES_MAX = 1 << 20
"""Of a pattern, compiled."""
TEXT_CHARS_MAX = 300
_ELSEWHERE = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$anchor", "$id")
_OLD = ("draft-03", "draft-04")
"""There `id` says what references are relative to."""


class JsonSchemas:
    """See `core.schemas.Schemas`."""

    def rule(self, schema: str) -> Rule:
        """Return the rule of a JSON Schema; raise BadRequest where it can't be used."""
        document = json.loads(schema)
        _Size(document).check()
        try:
            import jsonschema_rs
        except ImportError:
            return NoSchemas().rule(schema)
        try:
            options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX)
            validator = jsonschema_rs.validator_for(document, offline=True, pattern_options=options)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            text = str(getattr(error, "message", error))[:TEXT_CHARS_MAX]
            where = _pointer(getattr(error, "instance_path", []))
            raise BadRequest(f"bad option schema: {text}" + (f", at {where}" if where else "")) from None
        return _rule_of(validator.iter_errors)


def _rule_of(errors_of: Callable[[Any], Iterator[ValidationError]]) -> Rule:
    def rule(body: bytes) -> CurbstoneError | None:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return SchemaViolation(f"it is not JSON: {error}")
        for found in errors_of(value):
            return SchemaViolation(_short(found.message), _pointer(found.instance_path), _pointer(found.schema_path))
        return None

    return rule


def _pointer(path: list[str | int]) -> str:
    """Return a JSON Pointer (RFC 6901)."""
    return "".join(["/" + str(part).replace("~", "~0").replace("/", "~1") for part in path])


def _short(text: str) -> str:
    """Return what is said of a value, of which it shows all."""
    return text if len(text) <= TEXT_CHARS_MAX else f"…{text[-TEXT_CHARS_MAX:]}"


class _Size:
    """How much a schema comes to with all it refers to."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._sizes: dict[str, int] = {}
        self._open: list[str] = []

    def check(self) -> None:
        """Raise BadRequest where that is too much."""
        document = self._document
        if isinstance(document, dict):
            if any(old in str(document.get("$schema", "")) for old in _OLD):
                raise BadRequest("bad option schema: of JSON Schema the drafts 6, 7, 2019-09 and 2020-12 are supported")
            document = {name: value for name, value in document.items() if name != "$id"}
        if self._of(document, 0) > PARTS_MAX:
            raise BadRequest(f"bad option schema: with what it refers to it has more than {PARTS_MAX} parts")

    def _of(self, value: Any, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise BadRequest(f"bad option schema: it is more than {DEPTH_MAX} levels deep")
        if isinstance(value, list):
            return 1 + sum(self._of(item, depth + 1) for item in value)
        if not isinstance(value, dict):
            return 0
        for name in _ELSEWHERE:
            if isinstance(value.get(name), str | bool):
                raise BadRequest(f"bad option schema: {name} is not supported; $ref may name a part, as in #/$defs/x")
        reference = value.get("$ref")
        size = self._referred(reference, depth) if isinstance(reference, str) else 0
        return 1 + size + sum(self._of(item, depth + 1) for item in value.values())

    def _referred(self, reference: str, depth: int) -> int:
        if reference in self._open or reference == "#":
            raise BadRequest(f"bad option schema: $ref {reference[:80]!r} comes back to itself")
        if reference not in self._sizes:
            self._open.append(reference)
            self._sizes[reference] = self._of(self._find(reference), depth + 1)
            self._open.pop()
        return self._sizes[reference]

    def _find(self, reference: str) -> Any:
        found = self._document
        if not reference.startswith("#/") or "%" in reference:
            raise BadRequest(f"bad option schema: $ref {reference[:80]!r} is not a part of it, as in #/$defs/x")
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise BadRequest(f"bad option schema: $ref {reference[:80]!r} names nothing in it")
        return found
