"""What a producer asks for with a message: a delay, a time to live, groups, a priority. A plain message has none."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

PRIORITY = "priority"
"""The header with the priority of a message, as JMS names it."""
PRIORITY_MARK = b"priority:"
"""A block without this has no priority of its own."""
PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9

_GIVEN_MAX = 255
_DIGITS = re.compile(r"[0-9]{1,3}", re.ASCII)
_LINE = re.compile(rb"(?:\A|\n)priority:([0-9]{1,3})\n")


class Orders(NamedTuple):
    """Many messages may share one of these."""

    delay_ms: int = 0
    """Milliseconds after publishing before it may be delivered; 0 for at once."""
    ttl_ms: int = 0
    """Milliseconds after publishing when it expires; 0 for the queue's own ttl."""
    groups: tuple[str, ...] = ()
    """The groups entitled to it; empty for the unnamed group and every declared one."""
    level: int = 0
    """Its priority plus 1; 0 for the default priority."""


NOTHING = Orders()


def orders_of(*, delay_ms: int = 0, ttl_ms: int = 0, groups: tuple[str, ...] = (), level: int = 0) -> Orders | None:
    """Return the orders, or None if they ask for nothing."""
    return Orders(delay_ms, ttl_ms, groups, level) if delay_ms or ttl_ms or groups or level else None


def changed(orders: Orders | None, **changes: Any) -> Orders | None:
    """Return orders with some of them changed, or None if they ask for nothing any more."""
    orders = (orders or NOTHING)._replace(**changes)
    return orders if orders != NOTHING else None


# --- priorities


def priority_of(level: int) -> int:
    """Return the priority of a level."""
    return level - 1 if level else PRIORITY_DEFAULT


def _level_of(priority: int) -> int:
    return 0 if priority == PRIORITY_DEFAULT else min(priority, PRIORITY_MAX) + 1


def parse_priority(text: str) -> int:
    """Return the level of a priority; raise ValueError if it is none."""
    if not _DIGITS.fullmatch(text) or int(text) > _GIVEN_MAX:
        raise ValueError(f"it is a whole number from 0 to {PRIORITY_MAX}; up to {_GIVEN_MAX} counts as {PRIORITY_MAX}")
    return _level_of(int(text))


def level_in(block: bytes) -> int:
    """Return the level of the priority in a header block; that of a line that is no priority is the default."""
    found = _LINE.search(block) if PRIORITY_MARK in block else None
    return _level_of(int(found.group(1))) if found is not None and int(found.group(1)) <= _GIVEN_MAX else 0


def orders_in(block: bytes) -> Orders | None:
    """Return the orders that a header block has in it."""
    return OF_LEVEL[level_in(block)]


OF_LEVEL = [Orders(level=level) if level and level == _level_of(level - 1) else None for level in range(16)]
"""By number, the orders of a message with this level alone; None for the default one, and if there is no such level."""
