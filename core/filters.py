"""Filters: conditions on the headers of messages, a bounded part of SQL-92 as in the selectors of JMS. Pure.

Keywords may be in any case. Operators bind as in SQL: NOT, then AND, then OR. ::

    filter    = and, {"OR", and}
    and       = not, {"AND", not}
    not       = {"NOT"}, test
    test      = "(", filter, ")" | operand, ("=" | "<>" | "<" | "<=" | ">" | ">="), operand
              | name, ["NOT"], "BETWEEN", literal, "AND", literal
              | name, ["NOT"], "IN", "(", literal, {",", literal}, ")"
              | name, ["NOT"], "LIKE", text, ["ESCAPE", text]
              | name, "IS", ["NOT"], "NULL"
    operand   = name | literal
    literal   = text | number | "TRUE" | "FALSE"
    text      = "'", characters, with ' written '', "'"
    name      = letters, digits, _ $ . and - after a letter or _ | '"', any characters, with " written "", '"'

A name is that of a header in the message's block (see `core.headers`), with `x-msg-x-` in front or without, or one of
JMS: `JMSPriority`, `JMSTimestamp` (ms since 1970), `JMSType`, `JMSCorrelationID`, `JMSReplyTo`, `JMSXGroupID`.

All values are text. Compared with a number, a header counts as a number if it is written as one; compared with TRUE or
FALSE, if it is `true` or `false`. Otherwise the test is unknown, as it is for a header that the message does not have.
Logic has three values as in SQL, and a message passes only if the filter is true.

The work is bounded: in length, tests, literals and depth by the parser, in each value by `VALUE_CHARS_MAX`. LIKE takes
time in proportion to the text, whatever the pattern.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from curbstone.core import headers
from curbstone.core.conditions import (
    ANY_CHARACTER,
    ANY_CHARACTERS,
    NUMBER,
    NUMBER_CHARS_MAX,
    Compare,
    Fields,
    Pattern,
    Test,
    all_of,
    any_of,
    is_among,
    matcher,
    negated,
    number_of,
    of_name,
    of_names,
)
from curbstone.core.errors import BadRequest

TEXT_BYTES_MAX = 2048
TESTS_MAX = 64
LITERALS_MAX = 256
DEPTH_MAX = 16
WILD_MAX = 4
"""The most LIKE patterns in a filter that have both `%` and `_`, which cost the most."""
LIKE_WEIGHT, WILD_WEIGHT = 6, 3000
"""What LIKE costs with the longest value, and in addition if its pattern has both; see `Filter.weight`."""
COSTS_AT_ONCE = 200_000
"""What filters may cost at once, in a turn of the loop or on a worker thread; see `Filter.weight`."""
VALUE_CHARS_MAX = 4096
"""A header with a longer value counts as missing."""

NOT_SHARED = (
    "the messages of a queue are shared by all its consumers; to get only some of an event's messages, bind a queue"
    " of your own to it with a filter: curbstone bind EVENT QUEUE --filter …"
)
"""Why clients can not take from a queue with a filter, and what to do instead."""

Literal = str | int | float | bool

_JMS: Final = {
    "JMSType": "type",
    "JMSCorrelationID": "correlation-id",
    "JMSReplyTo": "reply-to",
    "JMSXGroupID": headers.KEY,
}
"""The headers that names of JMS stand for. `fields_of` adds the others."""
_PREFIX: Final = "x-msg-x-"
"""Headers of applications have this in front in a block if they came over HTTP. With it and without, it is one name."""
_LACKING: Final = frozenset(["JMSMessageID", "JMSDeliveryMode", "JMSDestination", "JMSExpiration", "JMSRedelivered"])
_MARKS: Final = ("convert_string_expressions:", "hyphenated_props:")
"""What ActiveMQ wants in front of a selector for what is always so here."""
_OPERATORS: Final[Mapping[str, Compare]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEYWORDS: Final = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
_TOKEN: Final = re.compile(
    rf"""(?P<number>{NUMBER})(?![\w$.])
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<quoted>(?:[^"]|"")+)"
    | (?P<word>[^\W\d][\w$.-]*)
    | (?P<sign><>|<=|>=|[=<>(),])""",
    re.VERBOSE,
)
_SPACE: Final = re.compile(r"\s*")


class Filter:
    """A filter, ready to be evaluated; `filter_of` makes it."""

    __slots__ = ("test", "text", "weight")

    def __init__(self, text: str, test: Test, weight: int) -> None:
        self.text = text
        self.test = test
        """See `core.conditions.Test`. A message passes if the result is True."""
        self.weight = weight
        """The most that an evaluation costs, in units of about half a microsecond."""

    @property
    def messages_at_once(self) -> int:
        """How many messages may be looked at at once."""
        return COSTS_AT_ONCE // self.weight

    def passes(self, fields: Fields) -> bool:
        return self.test(fields) is True

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def fields_of(block: bytes, timestamp_ms: int) -> Fields:
    """Return what filters see of a message with this header block, published at a time. The first of a name counts."""
    pairs = reversed(headers.decode(block))
    fields = {name.removeprefix(_PREFIX): value for name, value in pairs if len(value) <= VALUE_CHARS_MAX}
    fields["JMSPriority"] = fields.get("priority", "4")
    fields["JMSTimestamp"] = str(timestamp_ms)
    return fields


@lru_cache(maxsize=1024)
def filter_of(text: str) -> Filter:
    """Return the filter with this text; raise BadRequest with the place of the error."""
    if len(text) > TEXT_BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise BadRequest(f"bad filter: it has more than {TEXT_BYTES_MAX} bytes")
    return _Parser(text).parse()


# --- parsing


class _Token(NamedTuple):
    kind: str
    """`name`, `text`, `number`, `truth`, `end`, or a keyword or sign itself."""
    value: Literal
    at: int

    @property
    def shown(self) -> str:
        if self.kind == "end":
            return "the end"
        return repr(str(self.value)[:40])


class _Parser:
    """Parses one filter. Whatever the text, it takes time in proportion to its length."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._tests = 0
        self._literals = 0
        self._wild = 0
        self._likes = 0

    def parse(self) -> Filter:
        test = self._any(0)
        if self._token.kind != "end":
            self._fail("AND, OR or the end")
        return Filter(self._text, test, 1 + self._tests + LIKE_WEIGHT * self._likes + WILD_WEIGHT * self._wild)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _fail(self, expected: str) -> NoReturn:
        _refuse(self._token.at, f"expected {expected}, found {self._token.shown}")

    def _take(self, *kinds: str) -> _Token | None:
        """Take the next token if it is of one of these kinds."""
        token = self._token
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _expect(self, expected: str, *kinds: str) -> _Token:
        token = self._take(*kinds)
        if token is None:
            self._fail(expected)
        return token

    def _any(self, depth: int) -> Test:
        tests = [self._all(depth)]
        while self._take("OR"):
            tests.append(self._all(depth))
        return tests[0] if len(tests) == 1 else any_of(tests)

    def _all(self, depth: int) -> Test:
        tests = [self._not(depth)]
        while self._take("AND"):
            tests.append(self._not(depth))
        return tests[0] if len(tests) == 1 else all_of(tests)

    def _not(self, depth: int) -> Test:
        is_negated = False
        while self._take("NOT"):
            is_negated = not is_negated
        opening = self._take("(")
        if opening is None:
            test = self._test()
        elif depth == DEPTH_MAX:
            _refuse(opening.at, f"more than {DEPTH_MAX} parentheses in each other")
        else:
            test = self._any(depth + 1)
            self._expect("AND, OR or )", ")")
        return negated(test) if is_negated else test

    def _test(self) -> Test:
        self._tests += 1
        if self._tests > TESTS_MAX:
            _refuse(self._token.at, f"more than {TESTS_MAX} tests")
        operand = self._operand()
        sign = self._take(*_OPERATORS)
        if sign is not None:
            return self._comparison(operand, sign)
        if operand.kind != "name":
            self._fail("a comparison")
        name = str(operand.value)
        if self._take("IS"):
            wants_null = self._take("NOT") is None
            self._expect("NULL", "NULL")
            return lambda fields: (fields.get(name) is None) is wants_null
        is_negated = self._take("NOT") is not None
        if self._take("BETWEEN"):
            test = self._between(name)
        elif self._take("IN"):
            test = self._in(name)
        elif self._take("LIKE"):
            test = self._like(name)
        else:
            self._fail("BETWEEN, IN or LIKE" if is_negated else "a comparison, IS, BETWEEN, IN or LIKE")
        return negated(test) if is_negated else test

    def _operand(self) -> _Token:
        token = self._expect("the name of a header, or a value", "name", "text", "number", "truth")
        if token.kind != "name":
            self._count_literal(token)
        elif token.value in _LACKING:
            _refuse(token.at, f"{token.value} is not known to filters")
        return token

    def _literal(self, *kinds: str) -> _Token:
        expected = {"text": "a text in single quotes", "number": "a number"}
        token = self._expect(" or ".join([expected[kind] for kind in kinds]), *kinds)
        self._count_literal(token)
        return token

    def _count_literal(self, token: _Token) -> None:
        self._literals += 1
        if self._literals > LITERALS_MAX:
            _refuse(token.at, f"more than {LITERALS_MAX} values")

    def _comparison(self, left: _Token, sign: _Token) -> Test:
        right = self._operand()
        compare = _OPERATORS[str(sign.value)]
        if left.kind == right.kind == "name":
            return of_names(str(left.value), compare, str(right.value))
        kind = right.kind if left.kind == "name" else left.kind
        if kind == "truth" and sign.value not in ("=", "<>"):
            _refuse(sign.at, "TRUE and FALSE are compared with = and <>")
        if left.kind == "name":
            return of_name(str(left.value), kind, compare, right.value)
        if right.kind == "name":
            return of_name(str(right.value), kind, _OPERATORS[_MIRRORED[str(sign.value)]], left.value)
        if left.kind != right.kind:
            _refuse(right.at, f"a {left.kind} and a {right.kind} can't be compared")
        result = compare(left.value, right.value)
        return lambda _fields: result

    def _between(self, name: str) -> Test:
        low = self._literal("text", "number")
        self._expect("AND", "AND")
        high = self._literal(low.kind)
        at_least = of_name(name, low.kind, operator.ge, low.value)
        at_most = of_name(name, low.kind, operator.le, high.value)
        return all_of([at_least, at_most])

    def _in(self, name: str) -> Test:
        self._expect("(", "(")
        first = self._literal("text", "number")
        values = {first.value}
        while self._take(","):
            values.add(self._literal(first.kind).value)
        self._expect(", or )", ")")
        return of_name(name, first.kind, is_among, frozenset(values))

    def _like(self, name: str) -> Test:
        pattern = self._literal("text")
        escape = self._literal("text") if self._take("ESCAPE") else None
        if escape is not None and len(str(escape.value)) != 1:
            _refuse(escape.at, "ESCAPE takes one character")
        wanted = _elements(pattern, str(escape.value) if escape is not None else "")
        self._likes += 1
        if ANY_CHARACTER in wanted and ANY_CHARACTERS in wanted:
            self._wild += 1
            if self._wild > WILD_MAX:
                _refuse(pattern.at, f"more than {WILD_MAX} patterns with both % and _")
        matches = matcher(wanted)

        def test(fields: Fields) -> bool | None:
            value = fields.get(name)
            return None if value is None else matches(value)

        return test


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    for prefix in _MARKS:
        if text.startswith(prefix, at):
            at += len(prefix)
    while True:
        at = _space_end(text, at)
        if at == len(text):
            return [*found, _Token("end", "", at)]
        match = _TOKEN.match(text, at)
        if match is None:
            if text[at] in "'\"":
                _refuse(
                    at, "a name is not empty" if text.startswith('""', at) else f"no {text[at]} ends what begins here"
                )
            _refuse(at, f"unexpected {text[at : at + 20]!r}")
        found.append(_token_of(match, at))
        at = match.end()


def _space_end(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _token_of(match: re.Match[str], at: int) -> _Token:
    kind, found = str(match.lastgroup), match[str(match.lastgroup)]
    if kind == "number":
        number = number_of(found)
        if number is None:
            _refuse(at, f"a number has {NUMBER_CHARS_MAX} characters at most")
        return _Token(kind, number, at)
    if kind == "text":
        return _Token(kind, found.replace("''", "'"), at)
    if kind == "quoted":
        return _Token("name", found.replace('""', '"').removeprefix(_PREFIX), at)
    word = found.upper()
    if kind == "sign" or (word in _KEYWORDS and word not in ("TRUE", "FALSE")):
        return _Token(word, word, at)
    if word in _KEYWORDS:
        return _Token("truth", word == "TRUE", at)
    return _Token("name", _JMS.get(found, found).removeprefix(_PREFIX), at)


def _refuse(at: int, text: str) -> NoReturn:
    raise BadRequest(f"bad filter at character {at + 1}: {text}")


def _elements(pattern: _Token, escape: str) -> Pattern:
    """Return the elements of a pattern: characters, `ANY_CHARACTER` and `ANY_CHARACTERS`."""
    text = str(pattern.value)
    found: Pattern = []
    is_escaped = False
    for character in text:
        if is_escaped:
            if character not in ("%", "_", escape):
                _refuse(pattern.at, f"in the pattern, {escape!r} stands in front of {character!r}, not of % or _")
            found.append(character)
            is_escaped = False
        elif character == escape:
            is_escaped = True
        else:
            found.append({"_": ANY_CHARACTER, "%": ANY_CHARACTERS}.get(character, character))
    if is_escaped:
        _refuse(pattern.at, f"the pattern ends with {escape!r}, which has to stand in front of % or _")
    return found
