"""Typed columns of a lake: members of JSON bodies as columns of the table, beside `body`.

The columns are named by an option, or are the properties of each queue's own JSON Schema. Values that do not fit their
columns, and members without a column, are in the column `_rescued`, as JSON. So nothing is lost when a producer changes
its messages; `body` is unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.spark import calls
from curbstone.spark.client import Client
from curbstone.spark.columns import COLUMNS, DAY, MESSAGES
from curbstone.spark.failure import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

RESCUED = "_rescued"
BY_SCHEMA = "schema"
"""The word for the columns of each queue's JSON Schema."""

_COLUMN = re.compile(r"\s*(\w+)\s+(\w+)(?:\s+FROM\s+(\S+))?\s*", re.IGNORECASE | re.ASCII)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_INT64 = range(-(1 << 63), 1 << 63)


class _WrongType(Exception):
    """A value is not of the type of its column."""


def _bigint(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value not in _INT64:
        raise _WrongType
    return value


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _WrongType
    if isinstance(value, int) and int(float(value)) != value:
        raise _WrongType
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongType
    return value


def _varchar(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongType
    return value


def _timestamp(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _WrongType from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _WrongType from None


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


_TYPES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "BIGINT": (_bigint, "int64"),
    "DOUBLE": (_double, "float64"),
    "BOOLEAN": (_boolean, "bool"),
    "VARCHAR": (_varchar, "string"),
    "TIMESTAMP": (_timestamp, "timestamp"),
    "DATE": (_date, "date32"),
    "JSON": (_json, "string"),
}
"""The types of columns: the conversion of a value, and the type in Arrow. JSON is any value, as text."""
_SAME = {
    "INTEGER": "BIGINT",
    "INT": "BIGINT",
    "LONG": "BIGINT",
    "FLOAT": "DOUBLE",
    "STRING": "VARCHAR",
    "TEXT": "VARCHAR",
}
_OF_SCHEMA = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "VARCHAR"}
_OF_FORMAT = {"date-time": "TIMESTAMP", "date": "DATE"}


@dataclass(frozen=True)
class Column:
    """A column, and the path of its value in a body."""

    name: str
    type: str
    path: tuple[str | int, ...]


def parse(text: str) -> tuple[Column, ...]:
    """Return the columns of `NAME TYPE [FROM $.path], …`. Raise PipelineError."""
    found = []
    for part in text.split(","):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise PipelineError(f"--columns: {part.strip()!r} is not NAME TYPE or NAME TYPE FROM $.path")
        name, kind = match[1], match[2].upper()
        kind = _SAME.get(kind, kind)
        if kind not in _TYPES:
            raise PipelineError(f"--columns: {name}: unknown type {match[2]}; the types are {', '.join(_TYPES)}")
        found.append(Column(name, kind, _path(match[3] or f"$.{name}")))
    names = [column.name for column in found]
    for name in names:
        if name in _taken() or names.count(name) > 1:
            raise PipelineError(f"--columns: the name {name} is taken; use another name: {name}_2 … FROM $.{name}")
    return tuple(found)


def _taken() -> set[str]:
    return {*COLUMNS[MESSAGES], DAY, RESCUED}


def _path(text: str) -> tuple[str | int, ...]:
    steps = list(_STEP.finditer(text, 1))
    if not text.startswith("$") or "".join(step[0] for step in steps) != text[1:] or not steps or not steps[0][1]:
        raise PipelineError(f"--columns: bad path {text!r}: expected $.name, $.name.member or $.name[0]")
    return tuple(step[1] if step[1] else int(step[2]) for step in steps)


def of_json_schema(schema: object) -> tuple[Column, ...]:
    """Return a column for each property of an object's JSON Schema whose name is valid and not taken."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    found = []
    for name, rule in (properties or {}).items():
        if re.fullmatch(r"\w+", name, re.ASCII) and name not in _taken():
            found.append(Column(name, _type_of(rule), (name,)))
    return tuple(found)


def _type_of(rule: object) -> str:
    kinds = rule.get("type") if isinstance(rule, dict) else None
    known = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds or ()) if kind != "null"]
    if not isinstance(rule, dict) or len(known) != 1:
        return "JSON"
    if known[0] == "string":
        return _OF_FORMAT.get(str(rule.get("format")), "VARCHAR")
    return _OF_SCHEMA.get(known[0], "JSON")


def of_queues(client: Client, queues: Iterable[str]) -> dict[str, tuple[Column, ...]]:
    """Return the columns of each queue that has a JSON Schema."""
    found = {}
    for queue in queues:
        if schema := calls.schema_of(client, queue):
            found[queue] = of_json_schema(schema)
    return found


def fields(columns: Iterable[Column]) -> list[pa.Field]:
    """Return the stored columns, with the one for rescued values. The first of a name counts."""
    import pyarrow as pa

    types = {"timestamp": pa.timestamp("us", "UTC"), "date32": pa.date32()}
    found: dict[str, pa.Field] = {}
    for column in columns:
        name = _TYPES[column.type][1]
        found.setdefault(column.name, pa.field(column.name, types.get(name) or pa.type_for_alias(name)))
    return [*found.values(), pa.field(RESCUED, pa.string())] if found else []


def added(batch: pa.RecordBatch, columns: Sequence[Column], stored: Mapping[str, pa.Field]) -> pa.RecordBatch:
    """Return the rows with these columns, extracted from their bodies, in the types of the `stored` columns."""
    import pyarrow as pa

    wanted = [(column, _converted(column, stored[column.name])) for column in columns]
    members = {column.path[0] for column in columns}
    values: list[list[Any]] = [[] for _ in wanted]
    rescued: list[str | None] = []
    for body in batch.column("body").to_pylist():
        found = _object(body)
        misfits = {name: value for name, value in found.items() if name not in members}
        for (column, convert), column_values in zip(wanted, values, strict=True):
            value = _at(found, column.path)
            try:
                column_values.append(None if value is None else convert(value))
            except _WrongType:
                column_values.append(None)
                misfits[column.name] = value
        rescued.append(_json(misfits) if misfits else None)
    arrays = [pa.array(each, stored[column.name].type) for (column, _), each in zip(wanted, values, strict=True)]
    names = [*batch.schema.names, *(column.name for column, _ in wanted), RESCUED]
    return pa.RecordBatch.from_arrays([*batch.columns, *arrays, pa.array(rescued, pa.string())], names=names)


def _converted(column: Column, field: pa.Field) -> Callable[[Any], Any]:
    """Return the function that converts a value; it always fails if the stored column has another type."""
    import pyarrow as pa

    convert, name = _TYPES[column.type]
    of_type = {"timestamp": pa.types.is_timestamp, "date32": pa.types.is_date}
    fits = of_type[name](field.type) if name in of_type else field.type == pa.type_for_alias(name)
    return convert if fits else _never


def _never(_value: Any) -> Any:
    raise _WrongType


def _object(body: bytes | None) -> dict[str, Any]:
    """Return the object in a body, {} if it is not one."""
    if body is None or body.lstrip()[:1] != b"{":
        return {}
    try:
        found: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            value = value[step] if isinstance(step, int) == isinstance(value, list) else None
        except (KeyError, IndexError, TypeError):
            return None
    return value
