"""What waits of the keys of one group: rows for each key and priority, and for each priority those to be served."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.engine.index.buckets import Bucket

if TYPE_CHECKING:
    from curbstone.core.engine.index.level import Level

_USED_MAX = 64


class Line:
    """The rows of one priority. In a fair queue the next is one of the key with the fewest messages in flight."""

    __slots__ = ("_by_count", "_fewest", "firsts", "level")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.firsts: list[int] = []
        """A heap with the first messages of the rows, and others that are first no more; see `Keys.note_order`."""
        self._by_count: dict[int, OrderedDict[Row, None]] = {}
        """Rows of a fair queue that may be served, by how many of their keys are in flight.

        Of the rows with the same number, the one that has had it longest is the first.
        """
        self._fewest = 0
        """No row has fewer in flight."""

    @property
    def is_offered(self) -> bool:
        return bool(self._by_count)

    def next(self) -> Row | None:
        if not self._by_count:
            return None
        rows = self._by_count.get(self._fewest)
        if rows is None:
            self._fewest = min(self._by_count)
            rows = self._by_count[self._fewest]
        return next(iter(rows))

    def offer(self, row: Row, *, as_first: bool) -> None:
        """Let a row be served, after or before the others with as many in flight."""
        count = row.count = row.key.places_taken
        rows = self._by_count.get(count)
        if rows is None:
            rows = self._by_count[count] = OrderedDict()
            self._fewest = min(self._fewest, count)
        rows[row] = None
        row.is_offered = True
        if as_first:
            rows.move_to_end(row, last=False)

    def move(self, row: Row, *, stays: bool) -> None:
        """A message of the key of an offered row was delivered: the row `stays` and is served later, or is removed."""
        self.withdraw(row)
        if stays:
            self.offer(row, as_first=False)

    def withdraw(self, row: Row) -> None:
        """Let a row not be served."""
        rows = self._by_count[row.count]
        del rows[row]
        row.is_offered = False
        if not rows:
            del self._by_count[row.count]


class Row:
    """The messages of one key and one priority that wait. Some may have been settled meanwhile."""

    __slots__ = ("_at", "_returned", "_spans", "count", "first", "is_offered", "key", "line")

    def __init__(self, key: Key, line: Line) -> None:
        self.key = key
        self.line = line
        self.first = 0
        """The first one; 0 if none waits."""
        self.is_offered = False
        """Whether its first one may be delivered, and is in `returned` or, if the group is fair, in its line."""
        self.count = 0
        """How many of its key were in flight when it was put up."""
        self._spans = array("Q")
        """The first and the last seq of each stretch, in order."""
        self._at = 0
        """Where in `_spans` the first stretch is."""
        self._returned: list[int] = []
        """A heap of those that were requeued."""

    def append(self, seq: int) -> int:
        """Enter a message behind all others; return how many entries that takes."""
        spans = self._spans
        self.first = self.first or seq
        if len(spans) > self._at and spans[-1] == seq - 1:
            spans[-1] = seq
            return 0
        spans.append(seq)
        spans.append(seq)
        return 1

    def put_back(self, seq: int) -> None:
        """Enter a message in its place."""
        heappush(self._returned, seq)
        self.first = min(self.first or seq, seq)

    def stretches(self) -> list[tuple[int, int]]:
        """Return the first and the last seq of each stretch, in no order."""
        spans = self._spans[self._at :]
        return [*zip(spans[::2], spans[1::2], strict=True), *[(seq, seq) for seq in set(self._returned)]]

    def pop(self) -> int:
        """Take the first one out; return how many entries are free because of that."""
        spans, at, seq, freed = self._spans, self._at, self.first, 0
        if at < len(spans) and spans[at] == seq:
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
    """A group's record of a key of which something waits or is in flight."""

    __slots__ = ("bucket", "is_throttled", "last", "name", "places_taken", "rows")

    def __init__(self, name: bytes) -> None:
        self.name = name
        """b"" for all messages without a key, which are one key if the queue is fair."""
        self.places_taken = 0
        """By messages in flight and, in order, by one that is delayed or being settled."""
        self.last = 0
        """The message that took a place last."""
        self.rows: tuple[Row, ...] = ()
        """One for each priority of which messages have waited."""
        self.bucket: Bucket | None = None
        """None if it has been filling since the start."""
        self.is_throttled = False
        """Whether it waits until there is a token in the bucket."""

    @property
    def waits(self) -> bool:
        return any([row.first for row in self.rows])
