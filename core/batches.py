"""Batches: messages of one queue that belong together. When the last one is settled, the queue sends a report.

A message names its batch in the header `x-batch`. At least one of the batch has the number of its messages
(`x-batch-size`) and the queue that gets the report (`x-batch-to`). The lines count only if the message is marked so in
its orders (see `core.orders`). The state of a batch is its tally.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core.errors import BadRequest
from curbstone.core.headers import HeaderError, unescape
from curbstone.core.names import queue_name

if TYPE_CHECKING:
    from curbstone.core.message import Message

BATCH, BATCH_SIZE, BATCH_TO = "x-batch", "x-batch-size", "x-batch-to"
"""The headers with the id of a batch, the number of its messages, and the queue that gets its report."""
HEADERS = frozenset((BATCH, BATCH_SIZE, BATCH_TO))
BATCH_MARK = b"x-batch:"
"""A block without this names no batch."""
ID_BYTES_MAX = 128
SIZE_MAX = 1_000_000
_CACHED_BYTES_MAX = 256

NOT_TO_EVENTS = "a batch has messages of one queue: a message to an event can't be of one"
NOT_WITH_GROUPS = "a message of a batch is for the queue's consumers, and can't name groups"
NOT_PRIVATE = "a queue that belongs to one client has no batches"

_LINE = re.compile(rb"(?:\A|\n)(x-batch(?:-size|-to)?):([^\n]*)(?=\n)")
_DIGITS = re.compile(r"[0-9]{1,7}", re.ASCII)


class End(IntEnum):
    """How a message of a batch has ended."""

    ACKED = 0
    DEAD = 1
    EXPIRED = 2
    PURGED = 3
    REPLACED = 4
    UNKNOWN = 5
    """The log is damaged; or the server crashed before the settle was confirmed, and the message was gone already."""


class Membership(NamedTuple):
    """The headers of a message about its batch."""

    key: bytes
    id: str
    size: int
    """The number of messages of the batch; 0 if this message does not have it."""
    to: str
    """The name of the queue that gets the report, in the same project; empty if this message does not name it."""


class Tally(NamedTuple):
    """A batch that has not ended, with the numbers of its messages that were stored and settled."""

    id: str
    to: str = ""
    """See `Membership`; and `size`, too."""
    size: int = 0
    first: int = 0
    """No message with a lower seq is of this batch. Earlier ones with its id were of another, which has ended."""
    begun_ms: int = 0
    """Wall-clock time when its first message was stored."""
    changed_ms: int = 0
    """Engine time (see `core.host`) when one was stored or settled last."""
    stored: int = 0
    ended: tuple[int, ...] = (0,) * len(End)
    """How many of these have ended, by `End`."""

    @property
    def pending(self) -> int:
        """How many messages are stored and have not ended."""
        return self.stored - sum(self.ended)

    @property
    def ends(self) -> dict[str, int]:
        """How many messages have ended, by how."""
        return {end.name.lower(): self.ended[end] for end in End}

    def with_ended(self, end: End, count: int, now_ms: int) -> Tally:
        """Return a tally of which so many more messages have ended."""
        ended = [each + count * (number == end) for number, each in enumerate(self.ended)]
        return self._replace(changed_ms=now_ms, ended=tuple(ended))

    @property
    def is_complete(self) -> bool:
        """Whether all of its messages were stored and settled, and it is known which queue gets the report."""
        return bool(self.to) and 0 < self.size <= self.stored and self.pending <= 0

    def conflict(self, wanted: Membership, count: int) -> str:
        """Return why so many more messages can't be of this batch, or an empty text."""
        if self.size and wanted.size and wanted.size != self.size:
            return f"{BATCH_SIZE} is {wanted.size}, but batch {self.id} has a size of {self.size}"
        if self.to and wanted.to and wanted.to != self.to:
            return f"{BATCH_TO} is {wanted.to}, but batch {self.id} reports to {self.to}"
        size = self.size or wanted.size
        if size and self.stored + count > size:
            stored = f"{self.stored} of its messages are stored"
            return f"batch {self.id} has a size of {size}, and {stored}: no room for {count} more"
        return ""

    def with_stored(self, wanted: Membership, count: int) -> Tally:
        """Return a tally with so many more messages."""
        return self._replace(to=self.to or wanted.to, size=self.size or wanted.size, stored=self.stored + count)


class OpenBatch(NamedTuple):
    """A batch that has not ended."""

    tally: Tally
    refusal: str
    """Why its report could not be stored when that was tried last; empty if it was not tried yet."""


def batch_of(block: bytes) -> Membership:
    """Return the batch in a header block. The id is empty if there is none, or if the headers are not valid."""
    return _known_batch(block) if len(block) <= _CACHED_BYTES_MAX else _batch_of(block)


def _batch_of(block: bytes) -> Membership:
    found: dict[str, str] = {}
    try:
        for name, value in _LINE.findall(block):
            found.setdefault(name.decode(), unescape(value.decode("utf-8", "replace")))
        check_batch(found)
    except (HeaderError, ValueError, BadRequest):
        found = {}
    batch = found.get(BATCH, "")
    return Membership(batch_key(batch), batch, int(found.get(BATCH_SIZE, 0)), found.get(BATCH_TO, ""))


_known_batch = lru_cache(maxsize=12_000)(_batch_of)
"""A block is read several times on the way of its message, and so many messages may arrive at once."""


def reports_of(messages: Iterable[Message]) -> set[str]:
    """Return the names of the queues to which messages have the reports of their batches sent."""
    batched = [message for message in messages if message.orders is not None and message.orders.batched]
    return {to for message in batched if (to := batch_of(message.headers).to)}


def has_batch(block: bytes) -> bool:
    return block.find(BATCH_MARK) >= 0 and bool(batch_of(block).id)


def batch_key(batch: str) -> bytes:
    """Return the key of the batch with this id: the engine's tables have these."""
    return blake2b(batch.encode(), digest_size=16, person=b"batch").digest()


def check_batch(named: Mapping[str, str]) -> None:
    """Raise ValueError or BadRequest if the headers of a message about its batch are not valid."""
    batch, size, to = named.get(BATCH), named.get(BATCH_SIZE), named.get(BATCH_TO)
    if batch is None:
        header = BATCH_SIZE if size is not None else BATCH_TO
        if (size, to) != (None, None):
            raise ValueError(f"{header} is for a message with {BATCH}, and there is none")
        return
    if not 1 <= len(batch.encode()) <= ID_BYTES_MAX:
        raise ValueError(f"{BATCH} has {len(batch.encode())} bytes; the id of a batch has 1 to {ID_BYTES_MAX}")
    if size is not None and not (_DIGITS.fullmatch(size) and 1 <= int(size) <= SIZE_MAX):
        raise ValueError(f"{BATCH_SIZE} is {size[:80]!r}; it is a whole number from 1 to {SIZE_MAX}")
    if to is not None:
        queue_name(to)
