"""The forms of settings' values: texts of the command line and of the environment, and what TOML has.

Each parser takes a value from any source and returns it as it is used, or raises ValueError with the rule it breaks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from curbstone.core.options import parse_size

Parse = Callable[[object], Any]
_Number = TypeVar("_Number", int, float)

_SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def bad(value: object, rule: str) -> ValueError:
    """Return the error of a value that breaks a rule."""
    return ValueError(f"bad value {value!r}: {rule}")


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise bad(value, "a text in quotes is wanted")
    return value


def path(value: object) -> Path:
    """Return where a file or directory is."""
    if not isinstance(value, (str, Path)):
        raise bad(value, "a path in quotes is wanted")
    if value == "":
        raise ValueError("an empty path; the current directory is .")
    return Path(value)


def texts(value: object) -> tuple[str, ...]:
    """Return the parts of a text with commas, or of a list of texts."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if not isinstance(value, (list, tuple)):
        raise bad(value, "a text in quotes is wanted, or a list of them")
    return tuple(text(part) for part in value)


def switch(value: object) -> bool:
    """Return whether something is on."""
    found = value if isinstance(value, bool) else _SWITCHES.get(str(value).lower())
    if found is None:
        raise bad(value, "should be true or false")
    return found


def whole(least: int, most: int) -> Parse:
    """A whole number in a range."""

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value):
            return _in_range(value, int(value), least, most)
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad(value, "should be a whole number")
        return _in_range(value, value, least, most)

    return parse


def size(least: int, most: int) -> Parse:
    """A number of bytes in a range, with a unit where it is a text."""
    number = whole(least, most)
    return lambda value: number(parse_size(value) if isinstance(value, str) else value)


def seconds(least: float, most: float) -> Parse:
    """A number in a range; 0 is never in it."""

    def parse(value: object) -> float:
        try:
            found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            raise bad(value, "should be a number")
        if not least and not found:
            raise bad(value, "should be greater than 0")
        return _in_range(value, found, least, most)

    return parse


def one_of(*words: str) -> Parse:
    """One of these words."""

    def parse(value: object) -> str:
        if value not in words:
            raise bad(value, f"should be {', '.join(words[:-1])} or {words[-1]}")
        return str(value)

    return parse


def _in_range(value: object, found: _Number, least: _Number, most: _Number) -> _Number:
    if found < least:
        raise bad(value, f"should be greater than or equal to {least}")
    if found > most:
        raise bad(value, f"should be less than or equal to {most}")
    return found


def many(value: object) -> Sequence[object]:
    """Return the parts of a text with commas, empty ones too, or of a list."""
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)):
        raise bad(value, "a text in quotes is wanted, or a list of them")
    return found
