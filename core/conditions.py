"""What filters are made of: comparisons of headers, LIKE, and logic with three values. Pure.

A test returns None if its outcome is unknown, as in SQL. No test takes more time than the headers are long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

NUMBER_CHARS_MAX = 64
"""A longer text is no number."""

Fields = Mapping[str, str]
"""Headers by name."""
Test = Callable[[Fields], bool | None]
"""Returns whether headers satisfy a condition; None if that is unknown."""
Compare = Callable[[Any, Any], bool]

NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""The syntax of a number, in headers and in filters."""
_NUMBER: Final = re.compile(NUMBER)
_TRUTHS: Final = {"true": True, "false": False}


def any_of(tests: list[Test]) -> Test:
    def test(fields: Fields) -> bool | None:
        outcome: bool | None = False
        for each in tests:
            found = each(fields)
            if found:
                return True
            if found is None:
                outcome = None
        return outcome

    return test


def all_of(tests: list[Test]) -> Test:
    def test(fields: Fields) -> bool | None:
        outcome: bool | None = True
        for each in tests:
            found = each(fields)
            if found is False:
                return False
            if found is None:
                outcome = None
        return outcome

    return test


def is_among(value: object, values: frozenset[object]) -> bool:
    return value in values


def negated(test: Test) -> Test:
    def test_negated(fields: Fields) -> bool | None:
        found = test(fields)
        return None if found is None else not found

    return test_negated


def of_names(left: str, compare: Compare, right: str) -> Test:
    def test(fields: Fields) -> bool | None:
        one, other = fields.get(left), fields.get(right)
        return None if one is None or other is None else compare(one, other)

    return test


def of_name(name: str, kind: str, compare: Compare, literal: object) -> Test:
    """Return a test of a header against a literal, or several, of a kind."""
    if kind == "text":

        def test(fields: Fields) -> bool | None:
            value = fields.get(name)
            return None if value is None else compare(value, literal)

        return test
    read = number_of if kind == "number" else _TRUTHS.get

    def converted(fields: Fields) -> bool | None:
        text = fields.get(name)
        value = None if text is None else read(text)
        return None if value is None else compare(value, literal)

    return converted


def number_of(text: str) -> int | float | None:
    """Return the number that a text is written as, or None."""
    if len(text) > NUMBER_CHARS_MAX or _NUMBER.fullmatch(text) is None:
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


# --- LIKE

ANY_CHARACTER: Final = 1
ANY_CHARACTERS: Final = 2
Pattern = list[str | int]


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    if ANY_CHARACTER in pattern:
        return _by_states(pattern)
    pieces = [""]
    for element in pattern:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    return _by_pieces(pieces)


def _by_pieces(pieces: list[str]) -> Callable[[str], bool]:
    """Return a matcher of texts with these pieces in order, and anything between them."""
    if len(pieces) == 1:
        return pieces[0].__eq__
    head, *middle, tail = pieces
    middle = [piece for piece in middle if piece]
    least = len(head) + len(tail)

    def matches(text: str) -> bool:
        if len(text) < least or not text.startswith(head) or not text.endswith(tail):
            return False
        at, end = len(head), len(text) - len(tail)
        for piece in middle:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def _by_states(pattern: Pattern) -> Callable[[str], bool]:
    """Return a matcher that moves the bits of a number: bit n means that the first n characters were matched.

    A character of the text moves all bits with a few operations, as in `core.masks`.
    """
    moves: dict[str, int] = {}
    anything = stay = length = 0
    for element in pattern:
        bit = 1 << length
        if element == ANY_CHARACTERS:
            stay |= bit
            continue
        if isinstance(element, str):
            moves[element] = moves.get(element, 0) | bit
        else:
            anything |= bit
        length += 1

    def matches(text: str) -> bool:
        states = 1
        for character in text:
            states = (states & (moves.get(character, 0) | anything)) << 1 | states & stay
            if not states:
                return False
        return bool(states >> length & 1)

    return matches
