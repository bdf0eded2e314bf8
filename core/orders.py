"""What a producer asks for with a message: a delay, a time to live, groups, a priority, a name, a batch.

A plain message has none of these. A priority, a name and a batch are lines of the header block. They apply only if the
orders of the message have them, too: a dead letter may keep the lines, but it is a new message, without name and batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from curbstone.core.batches import BATCH_MARK, HEADERS, has_batch
from curbstone.core.headers import find_value, unescape

PRIORITY = "priority"
"""The header with the priority of a message, as JMS names it."""
PRIORITY_MARK = b"priority:"
"""A block without this has the default priority."""
PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9

_GIVEN_MAX = 255
_DIGITS = re.compile(r"[0-9]{1,3}", re.ASCII)
_LINE = re.compile(rb"(?:\A|\n)priority:([0-9]{1,3})\n")

_FIELDS = ("delay_ms", "ttl_ms", "groups", "level", "named", "batched")
NAMED = 16
"""Added to a level: the message has a name."""
BATCHED = 32
"""Added to a level: the message is of a batch."""
FACTS = NAMED | BATCHED


class Orders:
    """Immutable, and shared by many messages."""

    __slots__ = ("batched", "delay_ms", "flags", "groups", "level", "named", "ttl_ms")

    def __init__(
        self,
        *,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        groups: tuple[str, ...] = (),
        level: int = 0,
        named: bool = False,
        batched: bool = False,
    ) -> None:
        self.delay_ms = delay_ms
        """Milliseconds from publishing until it may be delivered."""
        self.ttl_ms = ttl_ms
        """Milliseconds from publishing until it expires; 0 for the queue's `ttl`."""
        self.groups = groups
        """The groups entitled to it; empty for the unnamed group and every declared one."""
        self.level = level
        """Its priority plus 1; 0 for the default priority."""
        self.named = named
        """Whether the name in its header block applies."""
        self.batched = batched
        """Whether the batch in its header block applies."""
        self.flags = level + NAMED * named + BATCHED * batched
        """The level, plus `NAMED` and `BATCHED`."""

    @property
    def is_empty(self) -> bool:
        """Whether the message is plain."""
        return not (self.flags or self.delay_ms or self.ttl_ms or self.groups)


NOTHING = Orders()


def orders_of(
    *,
    delay_ms: int = 0,
    ttl_ms: int = 0,
    groups: tuple[str, ...] = (),
    level: int = 0,
    named: bool = False,
    batched: bool = False,
) -> Orders | None:
    """Return the orders, or None if there are none."""
    orders = Orders(delay_ms=delay_ms, ttl_ms=ttl_ms, groups=groups, level=level, named=named, batched=batched)
    return None if orders.is_empty else orders


def changed(orders: Orders | None, **changes: Any) -> Orders | None:
    """Return orders with some fields changed, or None if none are left."""
    now = orders or NOTHING
    return orders_of(**{field: getattr(now, field) for field in _FIELDS} | changes)


# --- priorities


def priority_of(level: int) -> int:
    return level - 1 if level else PRIORITY_DEFAULT


def _level_of(priority: int) -> int:
    return 0 if priority == PRIORITY_DEFAULT else min(priority, PRIORITY_MAX) + 1


def parse_priority(text: str) -> int:
    """Return the level of a priority; raise ValueError if the text is not one."""
    if not _DIGITS.fullmatch(text) or int(text) > _GIVEN_MAX:
        raise ValueError(f"it is a whole number from 0 to {PRIORITY_MAX}; up to {_GIVEN_MAX} counts as {PRIORITY_MAX}")
    return _level_of(int(text))


def level_in(block: bytes) -> int:
    """Return the level of the priority in a header block; a line that is no valid priority counts as the default."""
    found = _LINE.search(block) if block.find(PRIORITY_MARK) >= 0 else None
    return _level_of(int(found.group(1))) if found is not None and int(found.group(1)) <= _GIVEN_MAX else 0


def kept_orders(block: bytes) -> Orders | None:
    """Return the orders that a message keeps when it is moved to another queue: its priority."""
    return OF_FLAGS[level_in(block)]


def orders_in(block: bytes) -> Orders | None:
    """Return the orders that a producer gives in a header block."""
    return OF_FLAGS[level_in(block) + NAMED * has_name(block) + BATCHED * has_batch(block)]


def with_flags(orders: Orders | None, flags: int) -> Orders | None:
    """Return orders whose name and batch apply as in the flags."""
    return (
        OF_FLAGS[flags] if orders is None else changed(orders, named=bool(flags & NAMED), batched=bool(flags & BATCHED))
    )


OF_FLAGS = [
    orders_of(level=level if level and level == _level_of(level - 1) else 0, named=named, batched=batched)
    for batched in (False, True)
    for named in (False, True)
    for level in range(16)
]
"""By flags (see `Orders.flags`), the orders of a message with nothing else; a level that does not exist counts as the
default."""


# --- names

UNIQUE, UNIQUE_UNTIL = "x-unique", "x-unique-until"
"""The headers with the name of a message that is stored only if no other has it, and until when it has the name."""
REPLACE, REPLACE_MAX = "x-replace", "x-replace-max"
"""The headers with the name of a message that replaces the waiting one with this name, and for how many ms that one and
those that it has replaced may have waited."""
NAMES = frozenset((UNIQUE, UNIQUE_UNTIL, REPLACE, REPLACE_MAX))
NAME_BYTES_MAX = 256
REPLACE_MAX_MS = 10 * 366 * 86_400_000
UNIQUE_MARK, REPLACE_MARK = b"x-unique:", b"x-replace:"
"""A block without these has no name."""
MARKS = (PRIORITY_MARK, UNIQUE_MARK, REPLACE_MARK, BATCH_MARK)
"""A block without these has no priority, name or batch."""

_OF_FACTS = NAMES | HEADERS
_BACKSLASH = ord("\\")
_DELIVERED_LINE = b"x-unique-until:delivered\n"
_MAX_LINE = re.compile(rb"(?:\A|\n)x-replace-max:([0-9]{1,15})\n")
_MAX_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)


Name = tuple[bytes, bool, bool, int]
"""The name that a message asks for, as (hash, until_delivered, replaces, most_ms). `until_delivered`: whether the name
is free as soon as the message was delivered once, and not only when it is settled. `replaces`: whether the message
replaces the waiting one that has the name, instead of being left out. `most_ms`: for how many ms that one and those
that it has replaced may have waited, 0 for any time. A plain tuple, because one is created for each message with a
name."""

_HASH = blake2b(digest_size=16)
"""A hash of nothing: a copy takes less time than a new one."""


def has_name(block: bytes) -> bool:
    """Return whether a header block asks for a name."""
    return bool(_name(block)[0])


def _name(block: bytes) -> tuple[bytes, bytes]:
    """Return the mark of the line with a name, and the name, still escaped; both are empty if there is none."""
    for mark in (UNIQUE_MARK, REPLACE_MARK):
        name = find_value(block, mark)
        if name is not None:
            return mark, name
    return b"", b""


def asked_name(block: bytes) -> Name:
    """Return the name in a header block that has one."""
    unique = find_value(block, UNIQUE_MARK)
    replacing = find_value(block, REPLACE_MARK) if unique is None else None
    line = unique or replacing or b""
    name = unescape(line.decode("utf-8", "replace")).encode() if _BACKSLASH in line else line
    if replacing is not None:
        found = _MAX_LINE.search(block)
        most_ms = int(found.group(1)) if found is not None else 0
        return blake2b(name, digest_size=16, person=b"replace").digest(), False, True, most_ms
    hashed = _HASH.copy()
    hashed.update(name)
    return hashed.digest(), find_value(block, _DELIVERED_LINE) is not None, False, 0


def without_names(block: bytes) -> bytes:
    """Return a header block without the lines about its name and its batch."""
    if UNIQUE_MARK not in block and REPLACE_MARK not in block and BATCH_MARK not in block:
        return block
    lines = block.splitlines(keepends=True)
    return b"".join([line for line in lines if line.partition(b":")[0].decode("utf-8", "replace") not in _OF_FACTS])


def shown_name(block: bytes) -> tuple[str, str]:
    """Return the header with the name in a block, and the name, or two empty texts; the orders say if it applies."""
    mark, line = _name(block)
    return mark[:-1].decode(), unescape(line.decode("utf-8", "replace"))


def check_names(headers: Mapping[str, str]) -> None:
    """Raise ValueError if the headers of a message ask for an invalid name."""
    unique, replace = headers.get(UNIQUE), headers.get(REPLACE)
    if unique is not None and replace is not None:
        raise ValueError(f"a message has {UNIQUE} or {REPLACE}, not both")
    for header, name in ((UNIQUE, unique), (REPLACE, replace)):
        if name is not None and not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"{header} has {len(name.encode())} bytes; a name has 1 to {NAME_BYTES_MAX}")
    until, most = headers.get(UNIQUE_UNTIL), headers.get(REPLACE_MAX)
    for header, value, beside, name in ((UNIQUE_UNTIL, until, UNIQUE, unique), (REPLACE_MAX, most, REPLACE, replace)):
        if value is not None and name is None:
            raise ValueError(f"{header} is for a message with {beside}, and there is none")
    if until not in (None, "settled", "delivered"):
        raise ValueError(f"{UNIQUE_UNTIL} is {str(until)[:80]!r}; it is settled or delivered")
    if most is not None and (not _MAX_DIGITS.fullmatch(most) or not 1 <= int(most) <= REPLACE_MAX_MS):
        raise ValueError(f"{REPLACE_MAX} is {most[:80]!r}; it is a whole number of ms from 1 to {REPLACE_MAX_MS}")
