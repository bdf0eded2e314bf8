"""An upper bound of the time to check a body against a JSON Schema. Pure.

The constants are the worst measurements of jsonschema-rs: numbers, for example, are compared exactly, so that 1e-300
takes a thousand times as long as a small integer. Most checks take a hundredth of the estimate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

PART_NS = 300
"""One part of the schema, for each value of the body that it applies to."""
NUMBER_NS = 35_000
"""A comparison of two numbers."""
WHOLE_NS = 5_000
"""A comparison with a small integer that is a limit."""
EQUAL_NS = 500
"""A comparison of two other values."""
POSITION_NS = 60
"""One position of a pattern, for each byte."""
FORMAT_NS = 20
"""A `format` or another keyword about the content of a string, for each byte."""
UNIQUE_NS = 2_000
"""One item of an array whose items must be unique."""
PAIR_NS = 600
"""One item against one other, if some are integers of 64 bits: then all pairs are compared."""
READ_VALUE_NS, READ_BYTE_NS = 400, 10
"""Reading the JSON, for each value and byte."""
UNEVALUATED = 3
"""The factor for parts that `unevaluatedProperties` and `unevaluatedItems` evaluate again."""

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FOR_EACH_BELOW = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "propertyNames"),
    *("additionalProperties", "unevaluatedProperties"),
)
_NOT_APPLIED = ("$defs", "definitions", "default", "examples", "title", "description", "$comment")
_LARGE = re.compile(rb"[0-9]{19}")
_TOKEN = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|.", re.DOTALL)


class Cost(NamedTuple):
    """The cost of checking a value: for the value itself, and for each value nested in it."""

    value_ns: float = 0
    byte_ns: float = 0
    below_value_ns: float = 0
    below_byte_ns: float = 0

    def plus(self, other: Cost) -> Cost:
        """Return the cost of two parts that both apply."""
        return Cost(*map(sum, zip(self, other, strict=True)))

    @property
    def below(self) -> Cost:
        """The cost of a part that applies to the nested values."""
        return Cost(0, 0, max(self.value_ns, self.below_value_ns), max(self.byte_ns, self.below_byte_ns))


def total(costs: Iterable[Cost]) -> Cost:
    """Return the cost of parts that all apply."""
    found = Cost()
    for cost in costs:
        found = found.plus(cost)
    return found


def most(costs: Iterable[Cost]) -> Cost:
    """Return the cost of parts of which one applies."""
    return Cost(*[max(column) for column in zip(Cost(), *costs, strict=True)])


class Costs:
    """The costs of one schema, whose references must not be circular."""

    def __init__(self, document: Any, find: Callable[[str], Any]) -> None:
        """`find` returns the part of the schema that a reference names."""
        self._find = find
        self._found: dict[str, Cost] = {}
        self._has_unique = False
        cost = self._of(document)
        self._value_ns = max(cost.value_ns, cost.below_value_ns) + READ_VALUE_NS
        self._byte_ns = max(cost.byte_ns, cost.below_byte_ns) + READ_BYTE_NS

    def most_ms(self, body: bytes) -> float:
        """Return the maximum time to check a body."""
        values = values_of(body)
        pairs = values * values * PAIR_NS if self._has_unique and _LARGE.search(body) else 0
        return (values * self._value_ns + len(body) * self._byte_ns + pairs) / 1_000_000

    def _of(self, schema: Any) -> Cost:
        if not isinstance(schema, dict):
            return Cost(PART_NS)
        here = total([self._of_keyword(name, value) for name, value in schema.items()]).plus(Cost(PART_NS))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            return here._replace(value_ns=UNEVALUATED * here.value_ns, byte_ns=UNEVALUATED * here.byte_ns)
        return here

    def _of_keyword(self, name: str, value: Any) -> Cost:
        if name in _NOT_APPLIED:
            return Cost()
        if name == "$ref" and isinstance(value, str):
            if value not in self._found:
                self._found[value] = self._of(self._find(value))
            return self._found[value]
        if name == "properties" and isinstance(value, dict):
            return most(map(self._of, value.values())).below
        if name == "patternProperties" and isinstance(value, dict):
            names = Cost(0, 2 * sum([POSITION_NS * positions(pattern) for pattern in value]))
            return total(map(self._of, value.values())).below.plus(names)
        if name in ("items", "prefixItems") and isinstance(value, list):
            return most(map(self._of, value)).below
        if name in _FOR_EACH_BELOW:
            return self._of(value).below
        if name == "enum" and isinstance(value, list) and all(isinstance(each, str) for each in value):
            return Cost(EQUAL_NS)
        if name in ("enum", "const"):
            return Cost(_equality_ns(value))
        if name in _NUMBERS:
            is_small = isinstance(value, int) and abs(value) < 1 << 53
            return Cost(WHOLE_NS if is_small else 2 * NUMBER_NS)
        if name == "pattern":
            return Cost(0, POSITION_NS * positions(str(value)))
        if name == "format" or name.startswith("content"):
            return Cost(0, FORMAT_NS)
        if name == "uniqueItems":
            self._has_unique = True
            return Cost(0, 0, UNIQUE_NS)
        if isinstance(value, list):
            return total(map(self._of, value))
        if isinstance(value, dict):
            inside = value.values() if name.startswith("depend") else [value]
            return total(map(self._of, inside))
        return Cost(EQUAL_NS)


def values_of(body: bytes) -> int:
    """Return the maximum number of values in a JSON text."""
    return 1 + len(body) - len(body.translate(None, b"[{,"))


def _equality_ns(value: Any) -> float:
    """Return the time to compare a value with this one, or with each of these."""
    if isinstance(value, list | dict):
        items = value.values() if isinstance(value, dict) else value
        return EQUAL_NS + sum(map(_equality_ns, items))
    return NUMBER_NS if isinstance(value, int | float) and not isinstance(value, bool) else EQUAL_NS


def positions(pattern: str) -> int:
    """Return the number of characters of a pattern, with each part counted as often as it may be repeated."""
    sums, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            sums.append(0)
        elif text == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif token[1] is not None:
            times = max(int(token[1] or 1), int(token[2] or 1))
            sums[-1] += last * (times - 1)
            last *= times
        elif text not in "*+?|^$":
            last = 1
            sums[-1] += 1
    return sum(sums)
