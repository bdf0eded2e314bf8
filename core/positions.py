"""Values for reading a queue by position: requests, and answers about messages, events and groups.

The position of a message is its seq. The position of an event is opaque: it grows along the log, and is only good to go
on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from curbstone.core.errors import CurbstoneError

EARLIEST = "earliest"
LATEST = "latest"

PUBLISHED = 1
RELEASED = 2
KINDS = ("", "published", "released", "settled", "rejected", "dead", "expired", "purged", "skipped", "replaced")
"""The names of the kinds of events; a kind is an index of this."""

T = TypeVar("T")

Found = Callable[[CurbstoneError | None, int], None]
Waited = Callable[[CurbstoneError | None], None]
PageDone = Callable[[CurbstoneError | None, T | None, int], None]
"""(error, what was made of the page, the position to continue at)"""
ListDone = Callable[[CurbstoneError | None, list[T], int], None]
"""(error, what was found, the position to continue at)"""


class Wanted(NamedTuple):
    """The live messages to read: those with `start` <= seq < `end`, in `group` or, if that is None, in any."""

    start: int
    end: int | None = None
    limit: int = 10_000
    bytes_max: int = 4 * 1024 * 1024
    group: str | None = None


class Frame(NamedTuple):
    """`span` entries as they lie in the log, by ascending seq. The bits of `mask` say which are meant; None is all."""

    first_seq: int
    span: int
    mask: int | None
    tries: list[tuple[int, int]]
    """(index of the entry, tries) for each message that was tried before."""
    entries: bytes | memoryview


class Stretch(NamedTuple):
    """How far some bytes reach: the messages below the seq `until` take `size` bytes."""

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
    """For a published message, the groups that it names, separated by commas."""
    value: int
    """For a published message, the bytes of its body; for a released one, when it is due, 0 for at once."""


class ReadRequest(NamedTuple):
    """The events to read: from `position` on, about as many as the limits say."""

    position: int
    limit: int
    bytes_max: int


class Trail(NamedTuple):
    """What to look for in a queue's log: messages with these seqs, of a transaction, or with this line in a header."""

    seqs: frozenset[int] = frozenset()
    tx: int = 0
    line: bytes = b""


class Trace(NamedTuple):
    """A message in a batch of a queue's log: it was published, or it was moved to another queue."""

    seq: int
    tx: int
    """The transaction over several queues that published or moved it; 0 if there was none, or it is forgotten."""
    is_moved: bool
    headers: bytes
    """The header block; empty for one that was moved."""


class Since(NamedTuple):
    """A start for a group: the first message that was published at this time or later."""

    timestamp_ms: int


Start = str | int | Since


class GroupInfo(NamedTuple):
    """A named group; its positions are seqs."""

    group: str
    epoch: str
    position: int
    """Its first pending message, or `next` if there is none. It has settled everything below."""
    next: int
    lost: int
    on_full: str
    floor: int
    pending: int
    declared: bool = True
    """An undeclared group exists because messages name it. It has no cumulative acks and no losses."""


class Backlog(NamedTuple):
    """How many messages of a named group are pending, by state."""

    group: str
    rdy: int
    wip: int
    delayed: int
    declared: bool

    @property
    def lag(self) -> int:
        return self.rdy + self.wip + self.delayed


Informed = Callable[[CurbstoneError | None, GroupInfo | None], None]
