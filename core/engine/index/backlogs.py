"""The waiting messages of the keys of one group: a backlog for each key and priority, a scheduler for each priority."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.engine.index.buckets import Bucket

if TYPE_CHECKING:
    from curbstone.core.engine.index.level import Level

_USED_MAX = 64


class Scheduler:
    """The backlogs of one priority. A fair queue next serves one of the key with the fewest messages in flight."""

    __slots__ = ("_by_count", "_fewest", "firsts", "level")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.firsts: list[int] = []
        """A heap of the first messages of the backlogs, and of stale entries; see `Keys.note_order`."""
        self._by_count: dict[int, OrderedDict[Backlog, None]] = {}
        """Backlogs of a fair queue that may be served, by how many messages of their keys are in flight.

        Of the backlogs with the same number, the one that has had it longest comes first.
        """
        self._fewest = 0
        """No backlog has fewer messages of its key in flight."""

    @property
    def is_offered(self) -> bool:
        return bool(self._by_count)

    def next(self) -> Backlog | None:
        if not self._by_count:
            return None
        backlogs = self._by_count.get(self._fewest)
        if backlogs is None:
            self._fewest = min(self._by_count)
            backlogs = self._by_count[self._fewest]
        return next(iter(backlogs))

    def offer(self, backlog: Backlog, *, as_first: bool) -> None:
        """Let a backlog be served, after or before the others with as many messages in flight."""
        count = backlog.count = backlog.key.places_taken
        backlogs = self._by_count.get(count)
        if backlogs is None:
            backlogs = self._by_count[count] = OrderedDict()
            self._fewest = min(self._fewest, count)
        backlogs[backlog] = None
        backlog.is_offered = True
        if as_first:
            backlogs.move_to_end(backlog, last=False)

    def move(self, backlog: Backlog, *, stays: bool) -> None:
        """Move an offered backlog behind the others, or withdraw it, after a message of its key was delivered."""
        self.withdraw(backlog)
        if stays:
            self.offer(backlog, as_first=False)

    def withdraw(self, backlog: Backlog) -> None:
        """Serve a backlog no longer."""
        backlogs = self._by_count[backlog.count]
        del backlogs[backlog]
        backlog.is_offered = False
        if not backlogs:
            del self._by_count[backlog.count]


class Backlog:
    """The waiting messages of one key and one priority. Some may have been settled meanwhile."""

    __slots__ = ("_at", "_returned", "_spans", "count", "first", "is_offered", "key", "scheduler")

    def __init__(self, key: Key, scheduler: Scheduler) -> None:
        self.key = key
        self.scheduler = scheduler
        self.first = 0
        """The seq of the first one; 0 if none waits."""
        self.is_offered = False
        """Whether its first message may be delivered: it is in `Level.returned` or, in a fair queue, in `scheduler`."""
        self.count = 0
        """How many messages of its key were in flight when it was offered."""
        self._spans = array("Q")
        """The first and the last seq of each stretch, in order."""
        self._at = 0
        """The index of the first stretch in `_spans`."""
        self._returned: list[int] = []
        """A heap of messages that were requeued."""

    def append(self, seq: int) -> int:
        """Add a message behind all others; return how many entries that takes."""
        spans = self._spans
        if not self.first:
            self.first = seq
        elif len(spans) > self._at and spans[-1] == seq - 1:
            spans[-1] = seq
            return 0
        spans.append(seq)
        spans.append(seq)
        return 1

    def put_back(self, seq: int) -> None:
        """Add a message in its place."""
        heappush(self._returned, seq)
        self.first = min(self.first or seq, seq)

    def stretches(self) -> list[tuple[int, int]]:
        """Return the first and the last seq of each stretch, in no order."""
        spans = self._spans[self._at :]
        return [*zip(spans[::2], spans[1::2], strict=True), *[(seq, seq) for seq in set(self._returned)]]

    def pop(self) -> int:
        """Remove the first message; return how many entries that frees."""
        spans, at, seq, freed = self._spans, self._at, self.first, 0
        if not self._returned or (at < len(spans) and spans[at] == seq):
            if spans[at + 1] == seq:
                at += 2
                freed = 1
                if at > _USED_MAX and 2 * at > len(spans):
                    del spans[:at]
                    at = 0
                self._at = at
            else:
                spans[at] = seq + 1
        self.first = spans[at] if at < len(spans) else 0
        if self._returned:
            self._pop_returned(seq)
        return freed

    def _pop_returned(self, seq: int) -> None:
        returned = self._returned
        while returned and returned[0] == seq:
            heappop(returned)
        if returned and (not self.first or returned[0] < self.first):
            self.first = returned[0]


class Key:
    """A key of a group that has messages waiting or in flight."""

    __slots__ = ("backlogs", "bucket", "is_throttled", "last", "name", "places_taken")

    def __init__(self, name: bytes) -> None:
        self.name = name
        """b"" for all messages without a key, which are one key if the queue is fair."""
        self.places_taken = 0
        """By messages in flight and, if the key is in order, by one that is delayed or being settled."""
        self.last = 0
        """The message that took a place last."""
        self.backlogs: tuple[Backlog, ...] = ()
        """One for each priority of messages that have waited."""
        self.bucket: Bucket | None = None
        """None stands for a bucket that has been filling since the start."""
        self.is_throttled = False
        """Whether it waits for a token in the bucket."""

    @property
    def waits(self) -> bool:
        return any([backlog.first for backlog in self.backlogs])
