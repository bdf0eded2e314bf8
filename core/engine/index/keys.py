"""The keys in one group: how many messages of each are in flight, and which ones wait for that, in order.

Of each key at most `key_limit` messages are in flight at once. If that is 1, a key is in order: its first pending
message is the only one that may be handed out, it holds up the others while it is delayed, and the next one follows
when its settle is on disk. So a crash can't bring it back after a later message of the key was handed out.

A message that the group's cursor reaches and that may not be handed out is entered in the row of its key. Consecutive
messages of a key take one entry there. If there are too many entries, the cursor stops until some are used up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.message import Delivery, Message

if TYPE_CHECKING:
    from curbstone.core.engine.index.group import Group
    from curbstone.core.engine.index.level import Level
    from curbstone.core.engine.index.runs import Run

ENTRIES_MAX = 262_144
KEYS_MAX = 100_000
"""The most keys of which something waits or is in flight."""
_USED_MAX = 64

WAITS, GOES, NO_ROOM = range(3)


class Row:
    """The messages of one key and one priority that wait. Some may have been settled meanwhile."""

    __slots__ = ("_at", "_returned", "_spans", "first", "is_up", "key", "level")

    def __init__(self, key: Key, level: Level) -> None:
        self.key = key
        self.level = level
        self.first = 0
        """The first one; 0 if none waits."""
        self.is_up = False
        """Whether its first one is among those of the level that may be handed out."""
        self._spans = array("Q")
        """The first and the last seq of each stretch, in order."""
        self._at = 0
        """Where in `_spans` the first stretch is."""
        self._returned: list[int] = []
        """A heap of those that were given back."""

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
    """What a group knows of a key of which something waits or is in flight."""

    __slots__ = ("held", "last", "name", "rows")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.held = 0
        """How many places are taken: by messages in flight and, in order, by one that is delayed or being settled."""
        self.last = 0
        """The message that took a place last."""
        self.rows: tuple[Row, ...] = ()
        """One for each priority of which messages have waited."""

    @property
    def waits(self) -> bool:
        return any([row.first for row in self.rows])


class Keys:
    """The keys of one group, made when the group meets the first message with a key."""

    __slots__ = ("_entries", "_group", "_of", "_rows", "_table")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._table: dict[bytes, Key] = {}
        self._of: dict[int, Key] = {}
        """The messages that have a place."""
        self._rows: dict[int, Row] = {}
        """Each row in which something waits, by its first message."""
        self._entries = 0

    # --- messages that the cursor reaches

    def meet(self, level: Level, name: bytes, seq: int) -> int:
        """Take in that the cursor has reached a message with a key; return what becomes of it.

        NO_ROOM: the cursor has to stop, because no more messages can wait. GOES: it is to be handed out. WAITS: it is
        not, because it waits or has a place.
        """
        table = self._table
        key = table.get(name)
        if key is None:
            if len(table) >= KEYS_MAX:
                return NO_ROOM
            key = table[name] = Key(name)
        elif seq in self._of:
            return WAITS
        elif key.held or key.rows and key.waits:
            if self._entries >= ENTRIES_MAX:
                return NO_ROOM
            row = self._row(key, level)
            if not row.first:
                self._rows[seq] = row
            self._entries += row.append(seq)
            return WAITS
        self._of[seq] = key
        key.held += 1
        key.last = seq
        return WAITS if seq in self._group.in_flight or self._group.is_delayed(seq) else GOES

    def _row(self, key: Key, level: Level) -> Row:
        for row in key.rows:
            if row.level is level:
                return row
        row = Row(key, level)
        key.rows += (row,)
        return row

    # --- messages that waited

    def take(self, level: Level, deliveries: list[Delivery], limit: int) -> None:
        """Hand out those that may be now, up to the first one that was handed out before, or is not in memory."""
        returned, rows, runs = level.returned, self._rows, self._group.reader.runs
        if self._group.retries or runs.any_expires or not returned or returned[0] <= level.recovered:
            return
        run: Run | None = None
        first = last = bits = 0
        messages: list[Message | None] = []
        while returned and len(deliveries) < limit:
            seq = returned[0]
            row = rows.get(seq)
            if row is None or not row.is_up or row.key.held:
                return
            if run is None or not first <= seq <= last:
                run = runs.find(seq)
                if run is None or run.messages is None:
                    return
                first, last, bits, messages = run.first, run.last, run.pending(self._group.name), run.messages
            message = messages[seq - first]
            if message is None or not bits >> (seq - first) & 1 or seq in self._group.in_flight:
                return
            heappop(returned)
            self.serve(row)
            deliveries.append(Delivery(message, 0, message.timestamp_ms))

    def next_of(self, seq: int) -> Row | None:
        """Return the row of which a message is the first, if it may be handed out."""
        row = self._rows.get(seq)
        return row if row is not None and row.is_up and not row.key.held else None

    def waits_or_holds(self, seq: int) -> bool:
        """Return whether a message has a place, or is the first of its row."""
        return seq in self._of or seq in self._rows

    def serve(self, row: Row) -> None:
        """Let the first message of a row take a place."""
        seq, key = row.first, row.key
        self.skip(row)
        self._of[seq] = key
        key.held += 1
        key.last = seq

    def skip(self, row: Row) -> None:
        """The first message of a row waits no more."""
        del self._rows[row.first]
        self._entries -= row.pop()
        row.is_up = False
        if row.first:
            self._rows[row.first] = row

    # --- places

    def leave(self, key: Key) -> None:
        """A place of a key is free."""
        key.held -= 1
        self.offer(key)

    def offer(self, key: Key) -> None:
        """Let the next message of a key be handed out, if there is a place. Forget a key of which nothing is left."""
        if key.held:
            return
        for row in key.rows:
            if row.first:
                if not row.is_up:
                    row.is_up = True
                    heappush(row.level.returned, row.first)
                return
        self._table.pop(key.name, None)

    def give_back(self, level: Level, seq: int, *, is_delayed: bool) -> bool:
        """A message was handed out, and waits again; return whether it had a place.

        It keeps the place while it is delayed.
        """
        key = self._of.get(seq)
        if key is None:
            return False
        if not is_delayed:
            del self._of[seq]
            if seq < level.cursor:
                row = self._row(key, level)
                if row.first:
                    del self._rows[row.first]
                row.put_back(seq)
                row.is_up = False
                self._rows[row.first] = row
            self.leave(key)
        return True

    def ended(self, seqs: Iterable[int]) -> list[Key]:
        """Take in that messages are no longer pending; return the keys to `leave` once that is on disk."""
        return [key for seq in seqs if (key := self._of.pop(seq, None)) is not None]

    # --- all

    def first_before(self, seq: int, name: bytes) -> int:
        """Return the seq that a message with a key is held back for, or 0 if there is none."""
        key = self._table.get(name)
        if key is None:
            return 0
        first = key.last if key.held else min([row.first for row in key.rows if row.first], default=seq)
        return first if first != seq else 0

    def rewind(self) -> None:
        """Forget what waits, because the cursor starts over. Messages that are in flight, or are being settled, keep
        their places."""
        in_flight = self._group.in_flight
        for seq in [seq for seq in self._of if seq not in in_flight]:
            self._of.pop(seq).held -= 1
        for key in self._table.values():
            key.rows = ()
        self._table = {name: key for name, key in self._table.items() if key.held}
        self._rows.clear()
        self._entries = 0
