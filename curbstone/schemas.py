"""JSON Schemas for the engine, based on jsonschema-rs, which is imported only when a queue has a schema.

A schema comes from anybody who may manage a queue, and a body from anybody who may publish to it. Neither must be able
to hold up the server. So a schema must not refer to anything outside of itself, its patterns must run in linear time,
and its size is limited with all references expanded. Without that limit, a reference to itself, or a chain of
references that doubles at each step, would make the check of a small body take for ever.
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
"""The most objects and lists in a schema. Those behind a reference count each time they are referred to."""
DEPTH_MAX = 64
PATTERN_BYTES_MAX = 1 << 20
"""The largest size of a compiled pattern."""
TEXT_CHARS_MAX = 300
_ELSEWHERE = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$anchor", "$id")
_OLD = ("draft-03", "draft-04")
"""Drafts in which references are relative to `id`, not to `$id`."""


class JsonSchemas:
    """See `core.schemas.Schemas`."""

    def rule(self, schema: str) -> Rule:
        """Return the rule that a JSON Schema stands for. Raise BadRequest if the schema can't be used."""
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
    """Return an error's text, shortened, because it quotes the whole value."""
    return text if len(text) <= TEXT_CHARS_MAX else f"…{text[-TEXT_CHARS_MAX:]}"


class _Size:
    """Measures a schema with all its references expanded."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._sizes: dict[str, int] = {}
        self._open: list[str] = []

    def check(self) -> None:
        """Raise BadRequest if the schema is too large."""
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
