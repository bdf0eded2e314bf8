"""Filters: what they mean, as SQLite says; what is refused, and where; and that no input makes one slow."""

from __future__ import annotations

import os
import sqlite3
import time
from random import Random

import pytest

from curbstone.core.errors import BadRequest
from curbstone.core.filters import (
    DEPTH_MAX,
    LIKE_WEIGHT,
    LITERALS_MAX,
    TESTS_MAX,
    TEXT_BYTES_MAX,
    VALUE_CHARS_MAX,
    WILD_MAX,
    WILD_WEIGHT,
    fields_of,
    filter_of,
)
from curbstone.core.headers import encode

NAMES = ("a", "b", "x-c")
VALUES: tuple[tuple[str | None, float | None, bool | None], ...] = (
    *((None, None, None), ("", None, None), ("1", 1, None), ("10", 10, None), ("9", 9, None), ("-2.50", -2.5, None)),
    *(
        ("1e1", 10, None),
        (".5", 0.5, None),
        ("1.", 1, None),
        (" 1", None, None),
        ("0x1", None, None),
        ("nan", None, None),
    ),
    *(("true", None, True), ("false", None, False), ("TRUE", None, None), ("it's", None, None), ("ab", None, None)),
    *(("aab", None, None), ("a%b", None, None), ("a_b", None, None), ("äöü", None, None), ("a\nb", None, None)),
    *(("A", None, None), ("99999999999999999999", 99999999999999999999, None), ("éa\U0001f600b", None, None)),
)
"""Values of headers, each with the number and the truth that it counts as."""
NUMBERS = ("1", "9", "10", "-2.5", "+.5", "1E1", "5.", "0")
TEXTS = ("", "1", "ab", "a", "it''s", "10", "äöü", "b", "A")
PATTERNS = (
    "%",
    "_",
    "a%",
    "%b",
    "%a%",
    "a_b",
    "_%_",
    "%a_b%",
    "__",
    "a%_b%",
    "%%",
    "a!%b",
    "!_%",
    "%ab%ab%",
    "",
    "ä__",
)


def quoted(name: str) -> str:
    return f'"{name}"'


def comparison(rng: Random) -> tuple[str, str]:
    """Return a test, and the same for SQLite, where each header has more columns for what it counts as."""
    name, sign = rng.choice(NAMES), rng.choice(["=", "<>", "<", "<=", ">", ">="])
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    no, isnt = rng.choice([("", ""), ("not ", "NOT ")])
    match rng.randrange(9):
        case 0:
            text = rng.choice(TEXTS)
            return f"{name} {sign} '{text}'", f"{quoted(name)} {sign} '{text}'"
        case 1:
            number = rng.choice(NUMBERS)
            return f'"{name}"{sign}{number}', f'"{name}_n" {sign} {number}'
        case 2:
            number = rng.choice(NUMBERS)
            return f"{number} {mirrored} {name}", f'"{name}_n" {sign} {number}'
        case 3:
            truth, sign = rng.choice(["TRUE", "false"]), rng.choice(["=", "<>"])
            return f"{name} {sign} {truth}", f'"{name}_t" {sign} {truth}'
        case 4:
            low, high = rng.choice(NUMBERS), rng.choice(NUMBERS)
            return f"{name} {no}between {low} and {high}", f'"{name}_n" {isnt}BETWEEN {low} AND {high}'
        case 5:
            texts = ",".join([f"'{rng.choice(TEXTS)}'" for _ in range(rng.randrange(1, 4))])
            return f"{name} {no}in ({texts})", f"{quoted(name)} {isnt}IN ({texts})"
        case 6:
            pattern = rng.choice(PATTERNS)
            return f"{name} {no}like '{pattern}' escape '!'", f"{quoted(name)} {isnt}LIKE '{pattern}' ESCAPE '!'"
        case 7:
            return f"{name} is {no}null", f"{quoted(name)} IS {isnt}NULL"
        case _:
            other = rng.choice(NAMES)
            return f"{name} {sign} {other}", f"{quoted(name)} {sign} {quoted(other)}"


def condition(rng: Random, depth: int) -> tuple[str, str]:
    """Return a filter and the same for SQLite."""
    if not depth or rng.random() < 0.3:
        return comparison(rng)
    (one, its), (two, others) = condition(rng, depth - 1), condition(rng, depth - 1)
    match rng.randrange(4):
        case 0:
            return f"NOT ({one})", f"NOT ({its})"
        case 1:
            return f"{one} AND {two}", f"{its} AND {others}"
        case 2:
            return f"{one} or {two}", f"{its} OR {others}"
        case _:
            return f"({one}) And not ({two})", f"({its}) AND NOT ({others})"


def test_filter_semantics_match_sqlite() -> None:
    seed = int(os.environ.get("CURBSTONE_FILTER_SEED", str(time.time_ns() % 1_000_000)))
    print(f"CURBSTONE_FILTER_SEED={seed}")
    rng = Random(seed)
    oracle = sqlite3.connect(":memory:")
    oracle.execute("PRAGMA case_sensitive_like = ON")
    columns = ", ".join([f'"{name}" TEXT, "{name}_n" NUMERIC, "{name}_t" INTEGER' for name in NAMES])
    oracle.execute(f"CREATE TABLE message ({columns})")
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        oracle.execute("DELETE FROM message")
        values = [rng.choice(VALUES) for _ in NAMES]
        row = [
            each for text, number, truth in values for each in (text, None if number is None else float(number), truth)
        ]
        oracle.execute(f"INSERT INTO message VALUES ({', '.join('?' * len(row))})", row)
        text, where = condition(rng, 3)
        expected = bool(oracle.execute(f"SELECT 1 FROM message WHERE {where}").fetchall())
        headers = [(name, value[0]) for name, value in zip(NAMES, values, strict=True) if value[0] is not None]
        found = filter_of(text).passes(fields_of(encode(headers), 1))
        assert found == expected, (text, headers)
        outcomes[found] += 1
    assert min(outcomes.values()) > 300, outcomes
    oracle.close()


def passes(text: str, *headers: tuple[str, str], timestamp_ms: int = 0) -> bool:
    return filter_of(text).passes(fields_of(encode(headers), timestamp_ms))


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("priority > 5", [("priority", "9")]),
        ("JMSPriority = 4 AND priority IS NULL", []),
        ("JMSPriority = 7", [("priority", "7")]),
        ("JMSType = 'car' AND JMSCorrelationID = 'c'", [("type", "car"), ("correlation-id", "c")]),
        ("JMSXGroupID LIKE 'k%' AND JMSReplyTo = '/x'", [("x-key", "k1"), ("reply-to", "/x")]),
        ("JMSTimestamp BETWEEN 999 AND 1000", []),
        ("content-type = 'text/plain' AND ce-type <> 'x'", [("content-type", "text/plain"), ("ce-type", "y")]),
        ('"a b" = \'1\' AND "AND" = \'2\' AND "q""" = \'3\'', [("a b", "1"), ("AND", "2"), ('q"', "3")]),
        ("a = 'first'", [("a", "first"), ("a", "second")]),
        ("a = 'x' AND x-msg-x-a = 'x' AND b = 'y' AND x-msg-x-b = 'y'", [("x-msg-x-a", "x"), ("b", "y")]),
        ("a IN (1, 2.0, 3)", [("a", "2")]),
        ("a = 'x:y\\n'", [("a", "x:y\\n")]),
        ("1 = 1 AND 'a' < 'b' AND NOT TRUE = FALSE", []),
    ],
)  # fmt: skip
def test_matching_filters(text: str, headers: list[tuple[str, str]]) -> None:
    assert passes(text, *headers, timestamp_ms=1000)
    assert not passes(f"NOT ({text})", *headers, timestamp_ms=1000)


@pytest.mark.parametrize(
    "text", ["a > 5", "NOT a > 5", "a <> 'x'", "a NOT LIKE 'x'", "a = b", "NOT (a = TRUE OR b = 1)"]
)
def test_unknown_does_not_match(text: str) -> None:
    assert not passes(text)
    assert not passes(text, ("a", "x"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "1: expected the name of a header, or a value, found the end"),
        ("a", "2: expected a comparison, IS, BETWEEN, IN or LIKE, found the end"),
        ("a =", "4: expected the name of a header, or a value, found the end"),
        ("a = 'x", "5: no ' ends what begins here"),
        ('"" = 1', "1: a name is not empty"),
        ("(a = 1", "7: expected AND, OR or ), found the end"),
        ("a = 1 b", "7: expected AND, OR or the end, found 'b'"),
        ("a = 5x", "5: unexpected '5x'"),
        ("a != 5", "3: unexpected '!= 5'"),
        ("a + 1 > 2", "3: unexpected '+ 1 > 2'"),
        ("5 < 'x'", "5: a number and a text can't be compared"),
        ("a < TRUE", "3: TRUE and FALSE are compared with = and <>"),
        ("a BETWEEN 1 AND 'x'", "17: expected a number, found 'x'"),
        ("a IN ('x', 5)", "12: expected a text in single quotes, found '5'"),
        ("a IN ()", "7: expected a text in single quotes or a number, found ')'"),
        ("a NOT = 5", "7: expected BETWEEN, IN or LIKE, found '='"),
        ("5 LIKE 'x'", "3: expected a comparison, found 'LIKE'"),
        ("a LIKE 5", "8: expected a text in single quotes, found '5'"),
        ("a LIKE 'x!y' ESCAPE '!'", "8: in the pattern, '!' stands in front of 'y', not of % or _"),
        ("a LIKE 'x!' ESCAPE '!'", "8: the pattern ends with '!', which has to stand in front of % or _"),
        ("a LIKE 'x' ESCAPE '!!'", "19: ESCAPE takes one character"),
        ("JMSMessageID = 'x'", "1: JMSMessageID is not known to filters"),
        (f"a = {'1' * 65}", "5: a number has 64 characters at most"),
        (
            "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
            f"{DEPTH_MAX + 1}: more than {DEPTH_MAX} parentheses",
        ),
        (" OR ".join(["a=1"] * (TESTS_MAX + 1)), f"{7 * TESTS_MAX + 1}: more than {TESTS_MAX} tests"),
        (f"a IN ({','.join(['1'] * (LITERALS_MAX + 1))})", f"{7 + 2 * LITERALS_MAX}: more than {LITERALS_MAX} values"),
        (" OR ".join(["a LIKE '%_'"] * (WILD_MAX + 1)), f"more than {WILD_MAX} patterns with both % and _"),
    ],
)
def test_filter_error_names_problem_and_position(text: str, error: str) -> None:
    with pytest.raises(BadRequest) as refused:
        filter_of(text)
    assert str(refused.value).startswith("bad filter at character ") and error in str(refused.value)


def test_a_filter_that_is_too_long_is_refused() -> None:
    assert filter_of(f"a = '{'x' * (TEXT_BYTES_MAX - 6)}'")
    for text in (f"a = '{'x' * TEXT_BYTES_MAX}'", f"a = '{'ä' * (TEXT_BYTES_MAX // 2)}'"):
        with pytest.raises(BadRequest, match="more than 2048 bytes"):
            filter_of(text)


def test_a_header_that_is_too_long_counts_as_missing() -> None:
    longest = "x" * VALUE_CHARS_MAX
    assert passes("a LIKE 'x%'", ("a", longest))
    assert passes("a IS NULL", ("a", longest + "x"))


@pytest.mark.parametrize(
    "pattern",
    ["%" + "a_" * 900 + "%", "%_" * 900, "%" + "%".join(["ab"] * 500) + "c%", "%" + "a" * 1000 + "b%", "_%" * 900],
)
def test_patterns_match_in_linear_time(pattern: str) -> None:
    """A pattern that is turned into a regular expression takes time that doubles with each of its signs."""
    wanted = filter_of(f"a LIKE '{pattern}'")
    fields = fields_of(encode([("a", "a" * (VALUE_CHARS_MAX - 1) + "b")]), 0)
    wanted.passes(fields)
    began = time.thread_time()
    wanted.passes(fields)
    print(f"{1000 * (time.thread_time() - began):.2f} ms")
    assert wanted.weight in (2 + LIKE_WEIGHT, 2 + LIKE_WEIGHT + WILD_WEIGHT)
