"""The sequence numbers of numbered producers: their range, and runs of consecutive ones.

A message that is published again with the same number is stored once. Each protocol has its own syntax for the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from curbstone.core.errors import BadRequest
from curbstone.core.values import Numbered

NUMBER_MAX = 10**15 - 1


def number(name: str, value: object, least: int) -> int:
    """Return a number that is given as text or as a JSON number; raise BadRequest."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX))) or int(text) < least:
        raise BadRequest(f"bad {name}: it must be a whole number from {least} to {NUMBER_MAX}")
    return int(text)


def numbered(name: str, producer: bytes, seq: int, after: int | None) -> Numbered:
    """Return the number of a message with its predecessor: `after`, or `seq - 1` if it is None.

    Raise BadRequest if `after` is not below `seq`. `name` is the protocol's name of `after`.
    """
    if after is None:
        after = seq - 1
    elif after >= seq:
        raise BadRequest(f"bad {name}: {after} is not below the number {seq}")
    return Numbered(producer, seq, after)


def runs(numbers: Sequence[Numbered]) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each run of consecutive numbers, which one publish can store."""
    start = 0
    for at in range(1, len(numbers)):
        before = numbers[at - 1].first
        if numbers[at].first != before + 1 or numbers[at].after != before:
            yield start, at
            start = at
    if numbers:
        yield start, len(numbers)
