"""The keys in one group: how many messages of each are in flight, and which messages wait for those, in order.

At most `key_limit` messages of each key are in flight at once. With a limit of 1, a key is in order: only its first
pending message may be delivered, the others wait while that one is delayed, and the next one follows when its settle is
on disk. So a message can't return after a crash when a later message of its key was delivered.

If a message that the group's cursor reaches may not be delivered, it is added to the backlog of its key. Consecutive
messages of a key take one entry there. If there are too many entries, the cursor stops until some are used up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.engine.index.backlogs import Backlog, Key, Scheduler
from curbstone.core.engine.index.buckets import Bucket
from curbstone.core.headers import key_of
from curbstone.core.message import Delivery, Message

if TYPE_CHECKING:
    from curbstone.core.engine.index.group import Group
    from curbstone.core.engine.index.level import IsDead, Level, Taken
    from curbstone.core.engine.index.runs import Run

ENTRIES_MAX = 262_144
KEYS_MAX = 100_000
"""The most keys with messages waiting or in flight."""
SPARE_MAX = 64
SWEEP_MS = 1000

WAITS, GOES, NO_ROOM = range(3)


class Keys:
    """The keys of one group, made for the first message with a key, or at once if the queue is fair."""

    __slots__ = (
        "_aside", "_burst", "_by_first", "_entries", "_group", "_limit", "_placed", "_rate", "_reading", "_schedulers",
        "_state", "_sweep_at", "_sweep_due_ms", "_swept_ms", "_table", "_throttled", "freed", "is_fair", "is_in_order",
        "passes_over",
    )  # fmt: skip

    def __init__(self, group: Group) -> None:
        self._group = group
        self._state = group.reader.state
        self._table: dict[bytes, Key] = {}
        self._swept_ms = 0
        self._sweep_due_ms = 0
        """Engine time when filled buckets may leave room for another key, if a message waits for that; else 0."""
        self._placed: dict[int, Key] = {}
        """By seq, the key of each message that has a place."""
        self._by_first: dict[int, Backlog] = {}
        """Each backlog that is not empty, by its first message."""
        self._schedulers: dict[Level, Scheduler] = {}
        self._entries = 0
        self.freed = 0
        """It rises whenever there may be room for a message that had none."""
        self._throttled: list[tuple[int, bytes]] = []
        """A heap of keys without a token, with the times when they get one."""
        self._aside: dict[Run, list[Backlog]] = {}
        """Backlogs of a fair queue whose first messages have to be read from the disk, by run."""
        self._reading: Run | None = None
        """The one of these runs that is being read."""
        self._use_options()

    def _use_options(self) -> None:
        self.freed += 1
        options = self._state.options
        self._limit = options.key_limit or sys.maxsize
        self._rate, self._burst = options.key_rate, options.key_burst_or_default
        self._sweep_at = min(SPARE_MAX, KEYS_MAX)
        self.is_in_order = options.key_limit == 1
        self.is_fair = options.fair
        """Whether all messages, even without a key, wait in backlogs, and a `Scheduler` chooses the next one."""
        self.passes_over = self._state.passes_over
        """Whether each delivery before an older message has a record; see `note_order`."""

    # --- messages that the cursor reaches

    def admit(self, level: Level, name: bytes, seq: int) -> int:
        """Decide what happens to a message with a key that the cursor has reached.

        NO_ROOM: the cursor has to stop, because no more messages can wait. GOES: deliver the message. WAITS: do not
        deliver it, because it waits, is delayed or has a place.
        """
        table, group = self._table, self._group
        in_flight = group.in_flight
        key = table.get(name)
        if key is None:
            if len(table) >= self._sweep_at and not self._make_room():
                self._sweep_later()
                return NO_ROOM
            key = table[name] = Key(name)
        elif seq in self._placed:
            return WAITS
        elif seq in in_flight:  # it was taken out of turn, or before keys mattered
            self._place(key, seq)
            self._offer_backlogs(key)
            return WAITS
        elif (key.places_taken >= self._limit and name) or (key.backlogs and self._must_wait(key, level)):
            return self._wait(level, key, seq)
        if seq in in_flight or (group.tracked and group.is_delayed(seq)):
            if seq in in_flight or (self.is_in_order and name):
                self._place(key, seq)
            else:
                self._forget(key)
            return WAITS
        if self.is_fair or (self._rate and name and not self._check_rate(key)):
            return self._wait(level, key, seq)
        self._placed[seq] = key  # as `_place` does it
        key.places_taken += 1
        key.last = seq
        if self._rate:
            self._spend(key)
        return GOES

    def _must_wait(self, key: Key, level: Level) -> bool:
        """Return whether a message that precedes one of a level waits."""
        if self.is_in_order:
            return key.waits
        return any([backlog.first for backlog in key.backlogs if backlog.scheduler.level is level])

    def _wait(self, level: Level, key: Key, seq: int) -> int:
        """Add a message to the backlog of its key, unless it is delayed and no other waits for it."""
        if self._group.tracked and self._group.is_delayed(seq) and not (self.is_in_order and key.name):
            return WAITS
        if self._entries >= ENTRIES_MAX:
            self._forget(key)
            return NO_ROOM
        backlogs = key.backlogs
        backlog = backlogs[0] if backlogs and backlogs[0].scheduler.level is level else self._ensure_backlog(key, level)
        was_first = not backlog.first
        self._entries += backlog.append(seq)
        if was_first:
            self._note_first(backlog)
            self._offer_backlogs(key)
        return WAITS

    def _ensure_backlog(self, key: Key, level: Level) -> Backlog:
        for backlog in key.backlogs:
            if backlog.scheduler.level is level:
                return backlog
        scheduler = self._schedulers.get(level)
        if scheduler is None:
            scheduler = self._schedulers[level] = Scheduler(level)
        backlog = Backlog(key, scheduler)
        key.backlogs += (backlog,)
        return backlog

    # --- messages that waited

    def take(self, level: Level, deliveries: list[Delivery], limit: int) -> None:
        """Deliver what may be delivered now, up to the first message that was delivered before or is not in memory."""
        returned, by_first, runs = level.returned, self._by_first, self._group.reader.runs
        if self._group.tracked or runs.any_expires or not returned or returned[0] <= level.recovered:
            return
        run: Run | None = None
        first = last = bits = 0
        messages: list[Message | None] = []
        limit_of_key = self._limit
        while returned and len(deliveries) < limit:
            seq = returned[0]
            backlog = by_first.get(seq)
            if backlog is None or not backlog.is_offered or backlog.key.places_taken >= limit_of_key:
                return
            if self._rate and not self._check_limits(backlog.key):
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
            self.take_place(backlog)
            deliveries.append(Delivery(message, 0, message.timestamp_ms))

    def head(self, level: Level) -> int:
        """Return the first message of the backlog that a level serves next; 0 if there is none."""
        scheduler = self._schedulers.get(level)
        backlog = scheduler.next() if scheduler is not None else None
        return backlog.first if backlog is not None else 0

    def take_fair(self, level: Level, taken: Taken, limit: int, is_dead: IsDead, room: int) -> int:
        """Take the next messages of a fair queue, up to so many, and so many bytes; return how many bytes are left."""
        if self._aside and self._reading is None:
            self._read()
        group, scheduler, deliveries = self._group, self._schedulers.get(level), taken.deliveries
        runs, tracked, in_flight = group.reader.runs, group.tracked, group.in_flight
        run: Run | None = None
        first = last = bits = 0
        while len(deliveries) < limit and room > 0 and taken.steps > 0:
            backlog = scheduler.next() if scheduler is not None else None
            if scheduler is None or backlog is None:
                taken.is_reading |= bool(self._aside)
                return room
            seq = backlog.first
            if run is None or not first <= seq <= last:
                run = runs.find(seq)
                if run is not None:
                    first, last, bits = run.first, run.last, run.pending(group.name)
            if run is None or not bits >> (seq - first) & 1 or seq in self._placed:
                self.drop_first(backlog)
                taken.steps -= 1
                continue
            known = tracked.get(seq) if tracked else None
            if seq in in_flight or (known is not None and known.due_ms):
                self.pass_over(backlog)
                taken.steps -= 1
                continue
            message = known.message if known is not None else None
            if message is None:
                if run.messages is None:
                    scheduler.withdraw(backlog)
                    self._aside.setdefault(run, []).append(backlog)
                    self._read()
                    continue
                message = run.messages[seq - first]
                if message is None:
                    self.drop_first(backlog)
                    continue
            self.take_place(backlog)
            room -= len(message.body)
            if known is None and seq > level.recovered and not message.expires_ms:
                deliveries.append(Delivery(message, 0, message.timestamp_ms))
            else:
                group.deliver_one(message, taken, is_dead)
        return room

    def _read(self) -> None:
        """Read the next run that backlogs wait for: one at a time, so that it is still in memory when it is needed."""
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
        for backlog in reversed(self._aside.pop(run, [])):
            self._offer_backlogs(backlog.key, as_first=True)

    def check_first(self, seq: int) -> Backlog | None:
        """Return the backlog whose first message this is, if it may be delivered; if not, offer it no longer."""
        backlog = self._by_first.get(seq)
        if backlog is None or not backlog.is_offered or self.is_fair:
            return None
        if self._check_limits(backlog.key):
            return backlog
        backlog.is_offered = False
        return None

    def has(self, seq: int) -> bool:
        """Return whether a message has a place, or is the first of its backlog."""
        return seq in self._placed or seq in self._by_first

    def requeue(self, level: Level, message: Message) -> bool:
        """Let a message that is ready again wait for its key; return False if keys do not concern it."""
        name = key_of(message.headers)
        if not (name or self.is_fair) or not self._state.uses_keys:
            return False
        if not (self.is_in_order and name):  # else it is in its backlog, and not the first
            key = self._table.get(name)
            if key is None:
                key = self._table[name] = Key(name)
            self._put_back(self._ensure_backlog(key, level), message.seq)
            self._offer_backlogs(key)
        return True

    def take_place(self, backlog: Backlog) -> None:
        """Take a place for the first message of a backlog, because it is delivered."""
        key, seq = backlog.key, backlog.first
        self._placed[seq] = key  # as `_place` does it
        key.places_taken += 1
        key.last = seq
        self._pop_first(backlog)
        if self._rate:
            self._spend(key)
        if self.is_fair:
            if len(key.backlogs) == 1 and not self._rate:
                is_below = key.places_taken < self._limit or not key.name
                backlog.scheduler.move(backlog, stays=backlog.first > 0 and is_below)
            else:
                self._offer_backlogs(key)
        elif backlog.first and key.places_taken < self._limit:
            self._offer_backlogs(key)

    def pass_over(self, backlog: Backlog) -> None:
        """Skip the first message of a backlog, which is delayed or was taken out of turn. In order, the next wait."""
        seq, key = backlog.first, backlog.key
        self._pop_first(backlog)
        if seq in self._group.in_flight or (self.is_in_order and key.name):
            self._place(key, seq)
        self._offer_backlogs(key)

    def drop_first(self, backlog: Backlog) -> None:
        """Remove the first message of a backlog: it no longer waits."""
        self._pop_first(backlog)
        self._offer_backlogs(backlog.key)

    def _pop_first(self, backlog: Backlog) -> None:
        del self._by_first[backlog.first]
        freed = backlog.pop()
        if freed:
            self._entries -= freed
            self.freed += 1
        if not self.is_fair:
            backlog.is_offered = False
        if backlog.first:
            if self.passes_over:
                self._note_first(backlog)
            else:
                self._by_first[backlog.first] = backlog

    def _put_back(self, backlog: Backlog, seq: int) -> None:
        first = backlog.first
        backlog.put_back(seq)
        if backlog.first != first:
            self._by_first.pop(first, None)
            self._note_first(backlog)
            if not self.is_fair:
                backlog.is_offered = False

    def _note_first(self, backlog: Backlog) -> None:
        self._by_first[backlog.first] = backlog
        if self.passes_over:
            firsts = backlog.scheduler.firsts
            heappush(firsts, backlog.first)
            if len(firsts) > 2 * len(self._by_first) + SPARE_MAX:
                scheduler = backlog.scheduler
                firsts[:] = sorted([seq for seq, each in self._by_first.items() if each.scheduler is scheduler])

    # --- places

    def _place(self, key: Key, seq: int) -> None:
        self._placed[seq] = key
        key.places_taken += 1
        key.last = seq

    def _check_limits(self, key: Key) -> bool:
        """Return whether a message of a key may be delivered; if only its rate forbids it, look again when it may."""
        if key.places_taken >= self._limit or self._rate:
            return not key.name or (key.places_taken < self._limit and not (self._rate and not self._check_rate(key)))
        return True

    def _offer_backlogs(self, key: Key, *, as_first: bool = False) -> None:
        """Offer those backlogs of a key that may be served, and no others. Forget the key if it has no messages."""
        waits = False
        for backlog in key.backlogs:
            goes = backlog.first > 0 and self._check_limits(key)
            waits = waits or backlog.first > 0
            if not self.is_fair:
                if goes and not backlog.is_offered:
                    backlog.is_offered = True
                    heappush(backlog.scheduler.level.returned, backlog.first)
            else:
                if backlog.is_offered and not (goes and backlog.count == key.places_taken):
                    backlog.scheduler.withdraw(backlog)
                if goes and not backlog.is_offered:
                    backlog.scheduler.offer(backlog, as_first=as_first)
        if not (waits or key.places_taken):
            self.freed += 1
            self._forget(key)

    def free_places(self, keys: list[Key]) -> None:
        """Free a place of each of these keys, and offer what may follow."""
        self.freed += 1
        for key in keys:
            key.places_taken -= 1
            backlogs = key.backlogs
            if not backlogs:
                if not key.places_taken and key.bucket is None:
                    self._table.pop(key.name, None)  # as `_forget` does it
                elif not key.places_taken:
                    self._forget(key)
            elif len(backlogs) > 1 or self.passes_over or key.places_taken or not backlogs[0].first:
                self._offer_backlogs(key)
            elif not (backlog := backlogs[0]).is_offered:  # it follows in the order of its key
                backlog.is_offered = True
                heappush(backlog.scheduler.level.returned, backlog.first)

    def release_place(self, level: Level, seq: int, *, is_delayed: bool) -> bool:
        """Release the place of a message that was delivered and waits again; return whether it had one.

        A key in order keeps the place while the message is delayed.
        """
        key = self._placed.get(seq)
        if key is None:
            return False
        if not (is_delayed and self.is_in_order and key.name):
            del self._placed[seq]
            if not is_delayed and seq < level.cursor:
                self._put_back(self._ensure_backlog(key, level), seq)
            self.free_places([key])
        return True

    def delayed(self) -> list[int]:
        """Return the messages that have a place but are not in flight: delayed ones of keys in order."""
        return [seq for seq in self._placed if seq not in self._group.in_flight]

    def end(self, seqs: Iterable[int]) -> list[Key]:
        """End messages that are no longer pending; return the keys to pass to `free_places` once that is on disk."""
        ended = [key for seq in seqs if (key := self._placed.pop(seq, None)) is not None]
        if self.is_in_order and not self.is_fair:
            return ended
        waits = [key for key in ended if self.is_in_order and key.name]
        if len(waits) < len(ended):
            self.free_places([key for key in ended if not (self.is_in_order and key.name)])
            self._group.reader.wakeups.wake(self._group.name)
        return waits

    # --- rates

    def _bucket(self, key: Key) -> Bucket:
        if key.bucket is None:
            key.bucket = Bucket(self._state.shared.started_ms, self._rate)
        return key.bucket

    def _check_rate(self, key: Key) -> bool:
        """Return whether a key has a token; if not, look again when it gets one."""
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

    def refund(self, seqs: Iterable[int]) -> None:
        """Return the tokens of messages that reached no client."""
        for seq in seqs if self._rate else ():
            key = self._placed.get(seq)
            if key is not None and key.name:
                self._bucket(key).take(-1)

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next key gets a token, or filled buckets may leave room for another key."""
        throttled_ms = self._throttled[0][0] if self._throttled else 0
        return min([due_ms for due_ms in (throttled_ms, self._sweep_due_ms) if due_ms], default=None)

    def mature(self, now_ms: int) -> bool:
        """Offer the backlogs of keys that have a token now; return whether there are any."""
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
                self._offer_backlogs(key)
        return any_due

    @property
    def has_offered(self) -> bool:
        """Whether a message of a fair queue may be delivered, at once or after a read."""
        return bool(self._aside) or any([scheduler.is_offered for scheduler in self._schedulers.values()])

    def is_offered(self, level: Level) -> bool:
        """Return whether a message of a level may be delivered, other than those in `returned`."""
        scheduler = self._schedulers.get(level)
        return scheduler is not None and scheduler.is_offered

    # --- all

    def all(self) -> list[Key]:
        return list(self._table.values())

    def _forget(self, key: Key) -> None:
        """Forget a key without messages waiting or in flight, unless a new bucket would have more tokens."""
        if key.places_taken or key.is_throttled or (key.backlogs and key.waits):
            return
        if key.bucket is None or self._is_refilled(key.bucket):
            self._table.pop(key.name, None)

    def _is_refilled(self, bucket: Bucket) -> bool:
        tokens = bucket.tokens(self._state.host.now_ms(), self._rate, self._burst) if self._rate else self._burst
        return tokens == self._burst

    def _make_room(self) -> bool:
        """Forget keys whose buckets have filled; return whether there is room for another key."""
        now_ms = self._state.host.now_ms()
        if self._rate and now_ms >= self._swept_ms + SWEEP_MS:
            self._swept_ms = now_ms
            for key in list(self._table.values()):
                self._forget(key)
            self._sweep_at = min(2 * len(self._table) + SPARE_MAX, KEYS_MAX)
        elif not self._rate:  # each is forgotten at once
            self._sweep_at = KEYS_MAX
        return len(self._table) < KEYS_MAX

    def _sweep_later(self) -> None:
        if self._rate and not self._sweep_due_ms:
            self._sweep_due_ms = self._swept_ms + SWEEP_MS
            self._group.reader.wakeups.at(self._sweep_due_ms)

    def note_order(self, level: Level, deliveries: list[Delivery], taken: Taken) -> None:
        """Note the deliveries of a level: a mark covers those before the first waiting message, records the others.

        If a mark covered a message that still waits, the message would count as tried after a crash.
        """
        scheduler, by_first = self._schedulers.get(level), self._by_first
        firsts = scheduler.firsts if scheduler is not None else []
        while firsts and (firsts[0] not in by_first or by_first[firsts[0]].scheduler is not scheduler):
            heappop(firsts)
        first = firsts[0] if firsts else sys.maxsize
        for delivery in deliveries:
            seq = delivery.message.seq
            if seq < first:
                level.delivered = max(level.delivered, seq)
            elif not delivery.tries:
                self._group.record_first_try(delivery, taken)

    def first_before(self, seq: int, name: bytes) -> int:
        """Return the seq of the message that this one of a key waits for, or 0 if there is none."""
        key = self._table.get(name)
        if key is None or not name:
            return 0
        if key.places_taken >= self._limit:
            return key.last if key.last != seq else 0
        if not self.is_in_order:
            return 0
        first = min([backlog.first for backlog in key.backlogs if backlog.first], default=seq)
        return first if first != seq else 0

    def rewind(self) -> None:
        """Forget what waits, because the cursor starts over, and apply the options.

        Messages that are in flight, or are being settled, keep their places.
        """
        in_flight = self._group.in_flight
        for seq in [seq for seq in self._placed if seq not in in_flight]:
            self._placed.pop(seq).places_taken -= 1
        self._by_first.clear()
        self._entries = 0
        self._throttled.clear()
        self._aside.clear()
        self._schedulers.clear()
        self._use_options()
        for key in list(self._table.values()):
            key.backlogs = ()
            key.is_throttled = False
            self._forget(key)
