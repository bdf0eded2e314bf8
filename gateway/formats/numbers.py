"""The headers of numbered producers: a message that is published again with the same number is stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from curbstone.core.errors import BadRequest
from curbstone.core.values import Numbered

if TYPE_CHECKING:
    from curbstone.access.door import Access

NUMBER_MAX = 10**15 - 1
NUMBERED = _PRODUCER, _SEQ, _AFTER = b"x-msg-producer", b"x-msg-seq", b"x-msg-after"

DUPLICATE = b"x-msg-duplicate"


def numbered_of(access: Access, fields: Iterable[tuple[bytes, bytes]]) -> Numbered | None:
    """Return a request's producer and the number of its first message; None without these headers. Raise BadRequest."""
    said = {name: value.decode("latin-1") for name, value in fields if name in NUMBERED}
    if not said:
        return None
    if _PRODUCER not in said or _SEQ not in said:
        raise BadRequest("x-msg-producer and x-msg-seq go together: who publishes, and the number of the first message")
    producer = access.producer(said[_PRODUCER])
    seq = number("x-msg-seq", said[_SEQ], 1)
    after = number("x-msg-after", said[_AFTER], 0) if _AFTER in said else seq - 1
    return numbered("x-msg-after", producer, seq, after)


def numbered(name: str, producer: bytes, seq: int, after: int) -> Numbered:
    """Return the numbers of a publish; raise BadRequest if `after` is not below `seq`.

    `name` is what the client calls `after`.
    """
    if after >= seq:
        raise BadRequest(f"bad {name}: {after} is not below the number {seq}")
    return Numbered(producer, seq, after)


def number(name: str, value: object, least: int) -> int:
    """Return a number that is given as text or as a JSON number; raise BadRequest."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX))) or int(text) < least:
        raise BadRequest(f"bad {name}: it must be a whole number from {least} to {NUMBER_MAX}")
    return int(text)
