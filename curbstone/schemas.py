"""JSON Schemas for the engine, based on jsonschema-rs, which is imported only when a queue has a schema.

A schema is set by any user who may manage a queue, and a body is sent by any who may publish to it. Neither must be
able to block the server. So a schema must not refer to anything outside of itself, its patterns must run in linear
time, and its size is limited with all references expanded. Without that limit, a circular reference, or a chain of
references that doubles at each step, would make the check of a small body take forever. A check that could still be
slow is made in another process (`schema_cost`, `schema_process`), and is aborted if it is.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.core.errors import BadRequest, CurbstoneError, NotSupported, SchemaViolation
from curbstone.core.schemas import NO_PACKAGE, UNPLACED
from curbstone.schema_cost import Costs, values_of
from curbstone.schema_process import CPU_S_MAX, MEMORY_MAX, Answer, CheckFailed, SchemaProcess, serve

if TYPE_CHECKING:
    from jsonschema_rs import Validator

PARTS_MAX = 2000
"""The maximum number of objects and lists in a schema. Those behind a reference count for each reference."""
DEPTH_MAX = 64
PATTERN_BYTES_MAX = 1 << 20
"""The maximum size of a compiled pattern."""
PATTERNS_BYTES_MAX = 8 << 20
"""The maximum size of all different patterns, compiled: each may have an equal share. This takes about 60 ms."""
LOOKS_MAX, LOOKS_APART_MAX = 500, 20_000
"""If the values of a body times the parts of the schema are more than this, the place that breaks it is not looked for:
at once, and in the other process."""
TEXT_CHARS_MAX = 300
_ELSEWHERE = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor", "$anchor", "$id")
_OLD = ("draft-03", "draft-04")
"""Drafts in which references are relative to `id`, not to `$id`."""


class JsonSchemas:
    def __init__(self) -> None:
        self._process = SchemaProcess(__name__)

    def rule(self, schema: str) -> _Rule:
        """Compile a JSON Schema. Raise BadRequest if the schema can't be used."""
        document = json.loads(schema)
        size = _Size(document)
        parts = size.check()
        try:
            import jsonschema_rs
        except ImportError:
            raise NotSupported(NO_PACKAGE) from None
        try:
            bytes_max = min(PATTERN_BYTES_MAX, PATTERNS_BYTES_MAX // max(len(size.patterns), 1))
            options = jsonschema_rs.RegexOptions(size_limit=bytes_max)
            validator = jsonschema_rs.validator_for(document, offline=True, pattern_options=options)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            text = str(getattr(error, "message", error))[:TEXT_CHARS_MAX]
            where = _pointer(getattr(error, "instance_path", []))
            raise BadRequest(f"bad option schema: {text}" + (f", at {where}" if where else "")) from None
        return _Rule(schema, validator, parts, Costs(document, size.find), self._process)


class _Rule:
    def __init__(self, schema: str, validator: Validator, parts: int, costs: Costs, process: SchemaProcess) -> None:
        self._schema = schema
        self._parts = parts
        self._validator = validator
        self._costs = costs
        self._process = process

    def most_ms(self, body: bytes) -> float:
        return self._costs.most_ms(body)

    def check(self, body: bytes) -> CurbstoneError | None:
        return self.check_looking(body, LOOKS_MAX)

    def check_looking(self, body: bytes, looks_max: int) -> CurbstoneError | None:
        """Check a body. Look for the place that breaks the schema if there are few values and parts to look at."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return SchemaViolation(f"it is not JSON: {error}")
        # The library creates all errors before it returns the first, at 30 µs each and with all that they quote.
        if self._validator.is_valid(value):
            return None
        if values_of(body) * self._parts > looks_max:
            return UNPLACED
        for found in self._validator.iter_errors(value):
            return SchemaViolation(_short(found.message), _pointer(found.instance_path), _pointer(found.schema_path))
        return SchemaViolation("it violates the schema")

    def check_apart(self, body: bytes) -> CurbstoneError | None:
        try:
            answer = self._process.check(self._schema, body)
        except CheckFailed:
            limit = f"{CPU_S_MAX:g} s of CPU time or {MEMORY_MAX >> 30} GiB of memory"
            return SchemaViolation(f"checking it takes more than {limit}")
        return None if answer is None else SchemaViolation(*answer)


@lru_cache(maxsize=64)
def _rule_apart(schema: str) -> _Rule:
    return JsonSchemas().rule(schema)


def _check_apart(schema: str, body: bytes) -> Answer:
    found = _rule_apart(schema).check_looking(body, LOOKS_APART_MAX)
    if found is None:
        return None
    assert isinstance(found, SchemaViolation)
    return [found.text, found.pointer, found.rule]


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
        self.patterns: set[str] = set()
        """The patterns in the schema."""

    def check(self) -> int:
        """Return how many parts the schema has; raise BadRequest if it is too large."""
        document = self._document
        if isinstance(document, dict):
            if any(old in str(document.get("$schema", "")) for old in _OLD):
                raise BadRequest("bad option schema: the supported drafts of JSON Schema are 6, 7, 2019-09 and 2020-12")
            document = {name: value for name, value in document.items() if name != "$id"}
        parts = self._of(document, 0)
        if parts > PARTS_MAX:
            raise BadRequest(f"bad option schema: it has more than {PARTS_MAX} parts, counting what it refers to")
        return parts

    def _of(self, value: Any, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise BadRequest(f"bad option schema: it is more than {DEPTH_MAX} levels deep")
        if isinstance(value, list):
            return 1 + sum(self._of(item, depth + 1) for item in value)
        if not isinstance(value, dict):
            return 0
        for name in _ELSEWHERE:
            if isinstance(value.get(name), str | bool):
                raise BadRequest(f"bad option schema: {name} is not supported; $ref can be a path such as #/$defs/x")
        self._note_patterns(value)
        reference = value.get("$ref")
        size = self._referred(reference, depth) if isinstance(reference, str) else 0
        return 1 + size + sum(self._of(item, depth + 1) for item in value.values())

    def _note_patterns(self, part: dict[str, Any]) -> None:
        if isinstance(part.get("pattern"), str):
            self.patterns.add(part["pattern"])
        if isinstance(part.get("patternProperties"), dict):
            self.patterns.update(part["patternProperties"])

    def _referred(self, reference: str, depth: int) -> int:
        if reference in self._open or reference == "#":
            raise BadRequest(f"bad option schema: $ref {reference[:80]!r} refers to itself")
        if reference not in self._sizes:
            self._open.append(reference)
            self._sizes[reference] = self._of(self.find(reference), depth + 1)
            self._open.pop()
        return self._sizes[reference]

    def find(self, reference: str) -> Any:
        """Return the part that a reference names; raise BadRequest."""
        found = self._document
        if not reference.startswith("#/") or "%" in reference:
            raise BadRequest(f"bad option schema: $ref {reference[:80]!r} is not a path in it, such as #/$defs/x")
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise BadRequest(f"bad option schema: $ref {reference[:80]!r} refers to nothing in the schema")
        return found


if __name__ == "__main__":
    serve(_check_apart)
