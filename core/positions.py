"""Values of reading a queue by position: what is asked for, and what is told of messages, events and groups.

A message's position is its seq. An event's position is opaque: it grows along the log, and says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.errors import CurbstoneError

EARLIEST = "earliest"
LATEST = "latest"

PUBLISHED = 1
RELEASED = 2
KINDS = ("", "published", "released", "settled", "rejected", "dead", "expired", "purged", "skipped")
"""What the kinds of events are called."""

Found = Callable[[CurbstoneError | None, int], None]
Waited = Callable[[CurbstoneError | None], None]


class Wanted(NamedTuple):
    """What to look at: messages that are live with `start` <= seq < `end`, in `group` if one is named."""

    start: int
    end: int | None = None
    limit: int = 10_000
    bytes_max: int = 4 * 1024 * 1024
    group: str | None = None


class Frame(NamedTuple):
    """Entries as they lie in the log, ascending; `mask` says which of the `span` are meant, None for all."""

    first_seq: int
    span: int
    mask: int | None
    tries: list[tuple[int, int]]
    """(index of the entry, tries) of those that were tried."""
    entries: bytes | memoryview


class Stretch(NamedTuple):
    """Messages below the seq `until` take `size` bytes."""

    until: int
    size: int


class Event(NamedTuple):
    """Something that happened to the seqs `seq` to `seq + span - 1` in a group."""

    position: int
    kind: int
    seq: int
    span: int
    time_ms: int
    tries: int
    group: str
    """Of a published message the groups it names, with commas between them."""
    value: int
    """Of a published message the bytes of its body; of a released one when it is due, 0 for at once."""


class Asked(NamedTuple):
    """Events from `position` on: about as many as this."""

    position: int
    limit: int
    bytes_max: int


class Since(NamedTuple):
    """A start: the first message published then or later."""

    timestamp_ms: int


Start = str | int | Since


class GroupInfo(NamedTuple):
    """A declared group; the positions are seqs."""

    group: str
    epoch: str
    position: int
    """It is done with everything below: its first pending message, else `next`."""
    next: int
    lost: int
    on_full: str
    floor: int
    pending: int
    declared: bool = True
    """An undeclared one is there because messages name it; it has no ack and no loss."""


class Backlog(NamedTuple):
    """What waits for a named group."""

    group: str
    rdy: int
    wip: int
    delayed: int
    declared: bool

    @property
    def lag(self) -> int:
        """How many messages the group is not done with."""
        return self.rdy + self.wip + self.delayed


Informed = Callable[[CurbstoneError | None, GroupInfo | None], None]
