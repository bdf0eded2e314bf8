"""The keys in one group: how many messages of each are in flight, and which ones wait for that, in order.

Of each key at most `key_limit` messages are in flight at once. If that is 1, a key is in order: its first pending
message is the only one that may be delivered, it holds up the others while it is delayed, and the next one follows
when its settle is on disk. So a crash can't bring it back after a later message of the key was delivered.

A message that the group's cursor reaches and that may not be delivered is entered in the row of its key. Consecutive
messages of a key take one entry there. If there are too many entries, the cursor stops until some are used up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.engine.index.buckets import Bucket
from curbstone.core.engine.index.rows import Key, Line, Row
from curbstone.core.headers import key_of
from curbstone.core.message import Delivery, Message

if TYPE_CHECKING:
    from curbstone.core.engine.index.group import Group
    from curbstone.core.engine.index.level import IsDead, Level, Taken
    from curbstone.core.engine.index.runs import Run

ENTRIES_MAX = 262_144
KEYS_MAX = 100_000
"""The most keys of which something waits or is in flight."""
SPARE_MAX = 64
SWEEP_MS = 1000

WAITS, GOES, NO_ROOM = range(3)


class Keys:
    """The keys of one group, made when it meets the first message with a key, or at once if the queue is fair."""

    __slots__ = (
        "_aside", "_burst", "_entries", "_group", "_limit", "_lines", "_placed", "_rate", "_reading", "_rows", "_state",
        "_sweep_at", "_sweep_due_ms", "_swept_ms", "_table", "_throttled", "freed", "is_fair", "is_in_order",
        "passes_over",
    )  # fmt: skip

    def __init__(self, group: Group) -> None:
        self._group = group
        self._state = group.reader.state
        self._table: dict[bytes, Key] = {}
        self._swept_ms = 0
        self._sweep_due_ms = 0
        """Engine time when a message that found no room for its key may find some, as buckets have filled; else 0."""
        self._placed: dict[int, Key] = {}
        """The messages that have a place."""
        self._rows: dict[int, Row] = {}
        """Each row in which something waits, by its first message."""
        self._lines: dict[Level, Line] = {}
        self._entries = 0
        self.freed = 0
        """It rises when there may be room for a message that found none."""
        self._throttled: list[tuple[int, bytes]] = []
        """A heap of keys that have no token, with the time when they have one."""
        self._aside: dict[Run, list[Row]] = {}
        """Rows of a fair queue whose first messages have to be read from the disk, by run."""
        self._reading: Run | None = None
        """The one of these runs that is being read."""
        self._use_options()

    def _use_options(self) -> None:
        self.freed += 1
        options = self._state.options
        self._limit = options.key_limit or sys.maxsize
        self._rate, self._burst = options.key_rate, options.key_burst_or_default
        self._sweep_at = SPARE_MAX
        self.is_in_order = options.key_limit == 1
        self.is_fair = options.fair
        """Whether all messages wait in rows, also those without a key, and `Line` chooses the row to serve."""
        self.passes_over = self._state.passes_over
        """Whether what was delivered before older messages is recorded one by one: see `note_order`."""

    # --- messages that the cursor reaches

    def reached(self, level: Level, name: bytes, seq: int) -> int:
        """Take in that the cursor has reached a message with a key; return what becomes of it.

        NO_ROOM: the cursor has to stop, because no more messages can wait. GOES: it is to be delivered. WAITS: it is
        not, because it waits, is delayed or has a place.
        """
        table, group = self._table, self._group
        key = table.get(name)
        if key is None:
            if len(table) >= min(self._sweep_at, KEYS_MAX) and not self._has_room():
                self._sweep_later()
                return NO_ROOM
            key = table[name] = Key(name)
        elif seq in self._placed:
            return WAITS
        elif seq in group.in_flight:  # it was taken out of turn, or before keys mattered
            self._place(key, seq)
            self._offer_rows(key)
            return WAITS
        elif (key.places_taken >= self._limit and name) or (key.rows and self._must_wait(key, level)):
            return self._wait(level, key, seq)
        if seq in group.in_flight or group.is_delayed(seq):
            if seq in group.in_flight or (self.is_in_order and name):
                self._place(key, seq)
            else:
                self._forget(key)
            return WAITS
        if self.is_fair or (self._rate and name and not self._has_token(key)):
            return self._wait(level, key, seq)
        self._place(key, seq)
        if self._rate:
            self._spend(key)
        return GOES

    def _must_wait(self, key: Key, level: Level) -> bool:
        """Return whether something waits that precedes a message of a level."""
        if self.is_in_order:
            return key.waits
        return any([row.first for row in key.rows if row.line.level is level])

    def _wait(self, level: Level, key: Key, seq: int) -> int:
        """Enter a message in the row of its key, unless it is delayed and holds up no other."""
        if self._group.tracked and self._group.is_delayed(seq) and not (self.is_in_order and key.name):
            return WAITS
        if self._entries >= ENTRIES_MAX:
            self._forget(key)
            return NO_ROOM
        rows = key.rows
        row = rows[0] if rows and rows[0].line.level is level else self._row(key, level)
        was_first = not row.first
        self._entries += row.append(seq)
        if was_first:
            self._note_first(row)
            self._offer_rows(key)
        return WAITS

    def _row(self, key: Key, level: Level) -> Row:
        for row in key.rows:
            if row.line.level is level:
                return row
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = Line(level)
        row = Row(key, line)
        key.rows += (row,)
        return row

    # --- messages that waited

    def take(self, level: Level, deliveries: list[Delivery], limit: int) -> None:
        """Deliver those that may be now, up to the first one that was delivered before, or is not in memory."""
        returned, rows, runs = level.returned, self._rows, self._group.reader.runs
        if self._group.tracked or runs.any_expires or not returned or returned[0] <= level.recovered:
            return
        run: Run | None = None
        first = last = bits = 0
        messages: list[Message | None] = []
        limit_of_key = self._limit
        while returned and len(deliveries) < limit:
            seq = returned[0]
            row = rows.get(seq)
            if row is None or not row.is_offered or row.key.places_taken >= limit_of_key:
                return
            if self._rate and not self._is_free(row.key):
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
            self.take_place(row)
            deliveries.append(Delivery(message, 0, message.timestamp_ms))

    def head(self, level: Level) -> int:
        """Return the first message of the row of a level that is served next; 0 if there is none."""
        line = self._lines.get(level)
        row = line.next() if line is not None else None
        return row.first if row is not None else 0

    def take_fair(self, level: Level, taken: Taken, limit: int, is_dead: IsDead, room: int) -> int:
        """Take the next messages of a fair queue, up to so many, and so many bytes; return how many bytes are left."""
        if self._aside and self._reading is None:
            self._read()
        group, line, deliveries = self._group, self._lines.get(level), taken.deliveries
        runs, tracked, in_flight = group.reader.runs, group.tracked, group.in_flight
        run: Run | None = None
        first = last = bits = 0
        while len(deliveries) < limit and room > 0 and taken.steps > 0:
            row = line.next() if line is not None else None
            if line is None or row is None:
                taken.is_reading |= bool(self._aside)
                return room
            seq = row.first
            if run is None or not first <= seq <= last:
                run = runs.find(seq)
                if run is not None:
                    first, last, bits = run.first, run.last, run.pending(group.name)
            if run is None or not bits >> (seq - first) & 1 or seq in self._placed:
                self.drop_first(row)
                taken.steps -= 1
                continue
            known = tracked.get(seq) if tracked else None
            if seq in in_flight or (known is not None and known.due_ms):
                self.pass_over(row)
                taken.steps -= 1
                continue
            message = known.message if known is not None else None
            if message is None:
                if run.messages is None:
                    line.withdraw(row)
                    self._aside.setdefault(run, []).append(row)
                    self._read()
                    continue
                message = run.messages[seq - first]
                if message is None:
                    self.drop_first(row)
                    continue
            self.take_place(row)
            room -= len(message.body)
            if known is None and seq > level.recovered and not message.expires_ms:
                deliveries.append(Delivery(message, 0, message.timestamp_ms))
            else:
                group.deliver_one(message, taken, is_dead)
        return room

    def _read(self) -> None:
        """Have the next run read that rows wait for. One at a time: so each is still in memory when it is needed."""
        while self._reading is None and self._aside:
            run = next(iter(self._aside))
            if run.is_indexed and run.messages is None:
                self._reading = run
                self._group.reader.load(run, partial(self._was_read, run))
            else:
                self._return_aside(run)

    def _was_read(self, run: Run) -> None:
        self._reading = None
        self._return_aside(run)
        self._group.reader.wakeups.wake_all()

    def _return_aside(self, run: Run) -> None:
        for row in reversed(self._aside.pop(run, [])):
            self._offer_rows(row.key, as_first=True)

    def next_of(self, seq: int) -> Row | None:
        """Return the row of which a message is the first, if it may be delivered."""
        row = self._rows.get(seq)
        if row is None or not row.is_offered or self.is_fair:
            return None
        if self._is_free(row.key):
            return row
        row.is_offered = False
        return None

    def has(self, seq: int) -> bool:
        """Return whether a message has a place, or is the first of its row."""
        return seq in self._placed or seq in self._rows

    def requeue(self, level: Level, message: Message) -> bool:
        """Let a message with a key wait that is ready again; return whether it has one, or needs none."""
        name = key_of(message.headers)
        if not (name or self.is_fair) or not self._state.uses_keys:
            return False
        if not (self.is_in_order and name):  # else it is in its row, and not the first
            key = self._table.get(name)
            if key is None:
                key = self._table[name] = Key(name)
            self._put_back(self._row(key, level), message.seq)
            self._offer_rows(key)
        return True

    def take_place(self, row: Row) -> None:
        """Take a place for the first message of a row, because it is delivered."""
        seq, key = row.first, row.key
        self._next(row)
        self._place(key, seq)
        if self._rate:
            self._spend(key)
        if self.is_fair:
            if len(key.rows) == 1 and not self._rate:
                row.line.move(row, stays=row.first > 0 and (key.places_taken < self._limit or not key.name))
            else:
                self._offer_rows(key)
        elif row.first and key.places_taken < self._limit:
            self._offer_rows(key)

    def pass_over(self, row: Row) -> None:
        """The first message of a row is delayed, or was taken out of turn. In order it holds up the others."""
        seq, key = row.first, row.key
        self._next(row)
        if seq in self._group.in_flight or (self.is_in_order and key.name):
            self._place(key, seq)
        self._offer_rows(key)

    def drop_first(self, row: Row) -> None:
        """The first message of a row waits no more."""
        self._next(row)
        self._offer_rows(row.key)

    def _next(self, row: Row) -> None:
        del self._rows[row.first]
        freed = row.pop()
        if freed:
            self._entries -= freed
            self.freed += 1
        if not self.is_fair:
            row.is_offered = False
        if row.first:
            if self.passes_over:
                self._note_first(row)
            else:
                self._rows[row.first] = row

    def _put_back(self, row: Row, seq: int) -> None:
        first = row.first
        row.put_back(seq)
        if row.first != first:
            self._rows.pop(first, None)
            self._note_first(row)
            if not self.is_fair:
                row.is_offered = False

    def _note_first(self, row: Row) -> None:
        self._rows[row.first] = row
        if self.passes_over:
            firsts = row.line.firsts
            heappush(firsts, row.first)
            if len(firsts) > 2 * len(self._rows) + SPARE_MAX:
                firsts[:] = sorted([seq for seq, each in self._rows.items() if each.line is row.line])

    # --- places

    def _place(self, key: Key, seq: int) -> None:
        self._placed[seq] = key
        key.places_taken += 1
        key.last = seq

    def _is_free(self, key: Key) -> bool:
        """Whether a message of a key may be delivered."""
        if key.places_taken >= self._limit or self._rate:
            return not key.name or (key.places_taken < self._limit and not (self._rate and not self._has_token(key)))
        return True

    def _offer_rows(self, key: Key, *, as_first: bool = False) -> None:
        """See which rows of a key may be served, and forget it if nothing is left of it."""
        waits = False
        for row in key.rows:
            goes = row.first > 0 and self._is_free(key)
            waits = waits or row.first > 0
            if not self.is_fair:
                if goes and not row.is_offered:
                    row.is_offered = True
                    heappush(row.line.level.returned, row.first)
            else:
                if row.is_offered and not (goes and row.count == key.places_taken):
                    row.line.withdraw(row)
                if goes and not row.is_offered:
                    row.line.offer(row, as_first=as_first)
        if not (waits or key.places_taken):
            self.freed += 1
            self._forget(key)

    def free_place(self, key: Key) -> None:
        """A place of a key is free."""
        self.freed += 1
        key.places_taken -= 1
        rows = key.rows
        if not rows or (len(rows) == 1 and not rows[0].first):
            if not key.places_taken:
                self._forget(key)
        elif len(rows) == 1 and rows[0].first and not (self.passes_over or rows[0].is_offered or key.places_taken):
            rows[0].is_offered = True  # as `_offer_rows` does it: this is the one that follows in the order of its key
            heappush(rows[0].line.level.returned, rows[0].first)
        else:
            self._offer_rows(key)

    def release_place(self, level: Level, seq: int, *, is_delayed: bool) -> bool:
        """A message was delivered, and waits again; return whether it had a place.

        In order it keeps the place while it is delayed.
        """
        key = self._placed.get(seq)
        if key is None:
            return False
        if not (is_delayed and self.is_in_order and key.name):
            del self._placed[seq]
            if not is_delayed and seq < level.cursor:
                self._put_back(self._row(key, level), seq)
            self.free_place(key)
        return True

    def delayed(self) -> list[int]:
        """Return the messages that have a place without being in flight: in order, those that are delayed."""
        return [seq for seq in self._placed if seq not in self._group.in_flight]

    def ended(self, seqs: Iterable[int]) -> list[Key]:
        """Take in that messages are no longer pending; return the keys to `free_place` once that is on disk."""
        ended = [key for seq in seqs if (key := self._placed.pop(seq, None)) is not None]
        if self.is_in_order and not self.is_fair:
            return ended
        waits = [key for key in ended if self.is_in_order and key.name]
        if len(waits) < len(ended):
            for key in ended:
                if not (self.is_in_order and key.name):
                    self.free_place(key)
            self._group.reader.wakeups.wake(self._group.name)
        return waits

    # --- rates

    def _bucket(self, key: Key) -> Bucket:
        if key.bucket is None:
            key.bucket = Bucket(self._state.shared.started_ms, self._rate)
        return key.bucket

    def _has_token(self, key: Key) -> bool:
        """Return whether a key may have another delivery; if not, see that it is looked at when it may."""
        bucket = self._bucket(key)
        if bucket.tokens(self._state.host.now_ms(), self._rate, self._burst):
            return True
        if not key.is_throttled:
            key.is_throttled = True
            heappush(self._throttled, (bucket.due_ms, key.name))
            self._group.reader.wakeups.at(bucket.due_ms)
        return False

    def _spend(self, key: Key) -> None:
        if key.name:
            self._bucket(key).take(1)

    def unused(self, seqs: Iterable[int]) -> None:
        """These messages reached no client: they do not count for the rates."""
        for seq in seqs if self._rate else ():
            key = self._placed.get(seq)
            if key is not None and key.name:
                self._bucket(key).take(-1)

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next key may have another delivery."""
        throttled_ms = self._throttled[0][0] if self._throttled else 0
        return min([due_ms for due_ms in (throttled_ms, self._sweep_due_ms) if due_ms], default=None)

    def mature(self, now_ms: int) -> bool:
        """Look again at keys that may have another delivery; return whether there are any."""
        throttled = self._throttled
        any_due = 0 < self._sweep_due_ms <= now_ms
        if any_due:
            self._sweep_due_ms = 0
            self.freed += 1
        while throttled and throttled[0][0] <= now_ms:
            _, name = heappop(throttled)
            any_due = True
            key = self._table.get(name)
            if key is not None and key.is_throttled:
                key.is_throttled = False
                self._offer_rows(key)
        return any_due

    @property
    def has_up(self) -> bool:
        """Whether a message of a fair queue may be delivered, at once or after a read."""
        return bool(self._aside) or any([line.is_offered for line in self._lines.values()])

    def is_offered(self, level: Level) -> bool:
        """Return whether a message of a level may be delivered, other than those in `returned`."""
        line = self._lines.get(level)
        return line is not None and line.is_offered

    # --- all

    def all(self) -> list[Key]:
        return list(self._table.values())

    def _forget(self, key: Key) -> None:
        """Forget a key of which nothing waits or is in flight, unless a new bucket would have more in it."""
        if key.places_taken or key.is_throttled or (key.rows and key.waits):
            return
        if key.bucket is None or self._is_refilled(key.bucket):
            self._table.pop(key.name, None)

    def _is_refilled(self, bucket: Bucket) -> bool:
        tokens = bucket.tokens(self._state.host.now_ms(), self._rate, self._burst) if self._rate else self._burst
        return tokens == self._burst

    def _has_room(self) -> bool:
        """Return whether there may be another key. Those whose buckets have filled meanwhile are forgotten first."""
        now_ms = self._state.host.now_ms()
        if self._rate and now_ms >= self._swept_ms + SWEEP_MS:
            self._swept_ms = now_ms
            for key in list(self._table.values()):
                self._forget(key)
            self._sweep_at = 2 * len(self._table) + SPARE_MAX
        elif not self._rate:  # each is forgotten at once
            self._sweep_at = KEYS_MAX
        return len(self._table) < KEYS_MAX

    def _sweep_later(self) -> None:
        if self._rate and not self._sweep_due_ms:
            self._sweep_due_ms = self._swept_ms + SWEEP_MS
            self._group.reader.wakeups.at(self._sweep_due_ms)

    def note_order(self, level: Level, deliveries: list[Delivery], taken: Taken) -> None:
        """Note what was delivered of a level: a mark covers it up to the first message that waits, records beyond that.

        A mark that covered messages that were passed over would let them count as tried after a crash.
        """
        line, rows = self._lines.get(level), self._rows
        firsts = line.firsts if line is not None else []
        while firsts and (firsts[0] not in rows or rows[firsts[0]].line is not line):
            heappop(firsts)
        first = firsts[0] if firsts else sys.maxsize
        for delivery in deliveries:
            seq = delivery.message.seq
            if seq < first:
                level.delivered = max(level.delivered, seq)
            elif not delivery.tries:
                self._group.record_first_try(delivery, taken)

    def first_before(self, seq: int, name: bytes) -> int:
        """Return the seq that a message with a key is held back for, or 0 if there is none."""
        key = self._table.get(name)
        if key is None or not name:
            return 0
        if key.places_taken >= self._limit:
            return key.last if key.last != seq else 0
        if not self.is_in_order:
            return 0
        first = min([row.first for row in key.rows if row.first], default=seq)
        return first if first != seq else 0

    def rewind(self) -> None:
        """Forget what waits, because the cursor starts over, and look at the options.

        Messages that are in flight, or are being settled, keep their places.
        """
        in_flight = self._group.in_flight
        for seq in [seq for seq in self._placed if seq not in in_flight]:
            self._placed.pop(seq).places_taken -= 1
        self._rows.clear()
        self._entries = 0
        self._throttled.clear()
        self._aside.clear()
        self._lines.clear()
        self._use_options()
        for key in list(self._table.values()):
            key.rows = ()
            key.is_throttled = False
            self._forget(key)
