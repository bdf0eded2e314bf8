"""One group of a queue's readers: what is ready in it, in which order, and how often each message was tried.

Ready messages are delivered by priority, the highest first, and within a priority in the order of their seqs: first
requeued messages, then everything that is pending from the cursor on (`core.engine.index.level`). A message that was
never delivered needs no object, so a backlog takes almost no memory. Ordering keys limit which messages may be in
flight at once (`core.engine.index.keys`).

A message in flight stays pending until it is settled. It is behind the cursor, so no consumer gets it twice.
docs/engine.md ("Tries", "The cursor") gives the reasons.
"""

from __future__ import annotations

from heapq import heappop, heappush

from curbstone.core.engine.index import due
from curbstone.core.engine.index.keys import Keys
from curbstone.core.engine.index.level import IsDead, Level, Taken
from curbstone.core.engine.index.reader import Reader
from curbstone.core.engine.index.runs import Run
from curbstone.core.engine.index.tracked import InFlightHolder, Tracked
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import TriesRecord
from curbstone.core.message import Delivery, Message
from curbstone.core.orders import priority_of

TAKE_BYTES_MAX = 1024 * 1024
CACHED_MESSAGES_MAX = 1024
CACHED_BYTES_MAX = 64 * 1024
KEYS = "keys"
"""The limit that is reported if all ready messages wait for others of their keys."""
MATURE_AT_ONCE = 2000
"""The most delayed messages that become ready in one turn."""


class Group:
    """The unnamed group of a queue, or a named one."""

    __slots__ = (
        "_cached", "_count", "_due", "_low", "delayed", "in_flight", "keys", "level",
        "levels", "name", "pending", "reader", "tracked",
    )  # fmt: skip

    def __init__(self, reader: Reader, name: str, first: int = 0) -> None:
        """Nothing below `first` is pending in the group, or will be."""
        self.reader = reader
        self.name = name
        self.pending = 0
        """The number of messages that the group is entitled to and has not settled; only `pends` changes it."""
        self.in_flight: dict[int, InFlightHolder | None] = {}
        """By seq in flight, the holder; None while the message moves to a consumer or a dead-letter queue."""
        self.delayed = 0
        self.level = Level(0, first)
        """The default priority."""
        self.levels: tuple[Level, ...] = (self.level,)
        """One for each priority that messages of the queue have had, the highest first."""
        self.tracked: dict[int, Tracked] = {}
        """By seq, the state of messages that were requeued or are delayed."""
        self.keys: Keys | None = None
        """The keys of the group; None before it has read one."""
        self._count = 0
        """How many deliveries there were since the last one of the oldest message; see `take`."""
        self._low = first
        """Nothing is pending below this seq."""
        self._due: list[tuple[int, int]] = []
        """A heap of (due_ms, seq) of delayed messages. Some may have been settled meanwhile."""
        self._cached = 0
        """How many messages are kept in memory while they wait to be delivered again."""
        for number in self.reader.runs.levels:
            self.level_numbered(number)
        if reader.state.options.fair:
            self.make_keys()

    @property
    def rdy(self) -> int:
        """Messages that may be delivered now."""
        return self.pending - len(self.in_flight) - self.delayed

    @property
    def has_ready(self) -> bool:
        """Whether `take` may find more, at once or after a read from the disk."""
        if self.keys is None or self.rdy <= 0:
            return self.rdy > 0
        runs = self.reader.runs
        return self.keys.has_offered or any(
            [
                level.returned
                or (level.stuck_at != self.keys.freed and runs.next_pending(self.name, level.number, level.cursor))
                for level in self.levels
            ]
        )

    def held_back_by_keys(self) -> tuple[int, str, int]:
        """If all ready messages wait for their keys, return how many, `KEYS`, and when the next may be delivered."""
        if self.keys is None or self.has_ready:
            return 0, "", 0
        return self.rdy, KEYS, self.keys.next_due_ms or 0

    @property
    def is_in_use(self) -> bool:
        """Whether anything is pending in the group, in flight, or has a `Tracked`."""
        return bool(self.pending or self.in_flight or self.tracked)

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next delayed message is due, or a key may have another delivery."""
        due_ms = self._due[0][0] if self._due else None
        key_ms = self.keys.next_due_ms if self.keys is not None else None
        return min(due_ms, key_ms) if due_ms is not None and key_ms is not None else due_ms or key_ms

    # --- what changes

    def pends(self, messages: int) -> None:
        """Add to the number of pending messages, which may be negative; keep room for records of their tries."""
        self.pending += messages
        self.reader.room.pends(messages)

    def count_levels(self, run: Run, bits: int, sign: int) -> None:
        """Add `sign` (1 or -1) for each message of a mask to the counts of its level, unless that is the default."""
        for number, mask in (run.levels or {}).items():
            if count := (mask & bits).bit_count():
                self.level_numbered(number).pending += sign * count

    def recount(self) -> None:
        self.pends(sum([run.pending(self.name).bit_count() for run in self.reader.runs]) - self.pending)
        for level in self.levels:
            level.pending = 0
        for run in self.reader.runs:
            if run.ranked:
                self.count_levels(run, run.pending(self.name), 1)

    def delay(self, seq: int, tries: int, due_ms: int, mature_ms: int, message: Message | None = None) -> None:
        """Delay a pending message that is not in flight until `due_ms`."""
        known = Tracked(tries, 0, mature_ms, self._cache(message))
        self._remember(seq, known)
        self._begin_delay(seq, known, due_ms)

    def _begin_delay(self, seq: int, known: Tracked, due_ms: int) -> None:
        known.due_ms = due_ms
        self.delayed += 1
        due.note(self._due, due_ms, seq, len(self.tracked), self._delays)
        self.reader.wakeups.at(due_ms)

    def _delays(self) -> list[tuple[int, int]]:
        return [(known.due_ms, seq) for seq, known in self.tracked.items() if known.due_ms]

    def sweep(self) -> None:
        due.sweep(self._due, len(self.tracked), self._delays)

    def release(self, message: Message, tries: int, due_ms: int, mature_ms: int) -> None:
        """Requeue a message to its place; if `due_ms` is not 0, delay it until then."""
        self.in_flight.pop(message.seq, None)
        if due_ms:
            if self.keys is not None:
                self.keys.release_place(self.level, message.seq, is_delayed=True)
            self.delay(message.seq, tries, due_ms, mature_ms, message)
            return
        self._remember(message.seq, Tracked(tries, 0, mature_ms, self._cache(message)))
        self._return(message.seq)

    def _return(self, seq: int) -> None:
        """Make a message ready that was in flight or delayed. If the cursor has not passed it, it will find it."""
        level = self.level_of(seq)
        if self.keys is not None and self.keys.release_place(level, seq, is_delayed=False):
            return
        if seq < level.cursor:
            heappush(level.returned, seq)

    def mark_untried(self, seq: int) -> None:
        """Note that a message was not delivered yet, though a mark in the log covers it."""
        if seq not in self.tracked:
            self._remember(seq, Tracked(0, 0, 0))

    def _remember(self, seq: int, known: Tracked) -> None:
        """Replace the state of a message. Until the new one is on disk, the earlier record in the log counts."""
        old = self.tracked.get(seq)
        if old is not None:
            known.segment, known.is_record_head = old.segment, old.is_record_head
        self.tracked[seq] = known

    def stored(self, released: TriesRecord, segment: Segment) -> None:
        """Note that a record of tries is on disk, in `segment`."""
        for seq in range(released.first, released.first + released.span):
            known = self.tracked.get(seq)
            if known is None:
                continue
            if known.segment is not None:
                known.segment.tries_records -= 1
            segment.tries_records += 1
            known.segment = segment
            is_head = seq == released.first
            if is_head != known.is_record_head:
                self.reader.room.recorded(1 if is_head else -1)
                known.is_record_head = is_head

    def tries_records_in(self, segment: Segment) -> list[TriesRecord]:
        """Return records of the current state to replace those in a segment that still count."""
        states: list[TriesRecord] = []
        for seq in sorted([seq for seq, known in self.tracked.items() if known.segment is segment]):
            known = self.tracked[seq]
            tries = known.tries + (seq in self.in_flight)
            last = states[-1] if states else None
            if last and last.first + last.span == seq and (last.tries, last.due_ms) == (tries, known.due_ms):
                states[-1] = last._replace(span=last.span + 1)
            else:
                states.append(TriesRecord(self.name, seq, 1, tries, known.due_ms))
        return states

    def recover(self, seq: int, tries: int, due_ms: int) -> None:
        """Set the tries and the due time of a pending message that the cursor has not reached."""
        old = self.tracked.get(seq)
        if old is not None:
            self._end_delay(old)
        if due_ms:
            self.delay(seq, tries, due_ms, due_ms)
        else:
            self._remember(seq, Tracked(tries, 0, 0))

    def seize(self, seq: int) -> int:
        """Take a message out of turn, even if it is delayed; return when it is due. It counts as delivered."""
        known = self.tracked.get(seq)
        if known is None:  # so that the cursor looks at each message, and finds that this one is in flight
            self._remember(seq, Tracked(self.tries_of(seq), 0, 0))
        self.in_flight[seq] = None
        return self._end_delay(known) if known is not None else 0

    def _end_delay(self, known: Tracked) -> int:
        """End the delay of a message; return when it was due, 0 if it was not delayed."""
        due_ms = known.due_ms
        if due_ms:
            known.due_ms = 0
            self.delayed -= 1
        return due_ms

    def set_back(self, seq: int, due_ms: int) -> None:
        """Undo `seize`: the message waits again, with no further try, unless it was settled meanwhile."""
        if seq not in self.in_flight:
            return
        del self.in_flight[seq]
        if due_ms:
            self._begin_delay(seq, self.tracked[seq], due_ms)
        else:
            self._return(seq)
        self.reader.wakeups.wake(self.name)

    def end_delivery(self, seq: int) -> None:
        """End the delivery of a message that was settled, but not by its holder."""
        holder = self.in_flight.pop(seq, None)
        if holder is not None:
            holder.lose(seq)

    def seize_ready(self, message: Message) -> Delivery:
        """Take a ready message out of turn, and return it as a delivery."""
        self.seize(message.seq)
        known = self.tracked[message.seq]
        return Delivery(message, known.tries, known.mature_ms or message.timestamp_ms)

    def forget(self, seq: int) -> None:
        """Forget the tries and the delay of a message that was settled."""
        known = self.tracked.pop(seq, None)
        if known is not None:
            self._end_delay(known)
            if known.message is not None:
                self._cached -= 1
            self._lose_record(known)

    def _lose_record(self, known: Tracked) -> None:
        if known.segment is not None:
            known.segment.tries_records -= 1
            known.segment = None
        if known.is_record_head:
            self.reader.room.recorded(-1)
            known.is_record_head = False

    def lose_records(self, segment: Segment) -> None:
        """Note that the records in a segment are lost: their contents are in memory only."""
        for known in self.tracked.values():
            if known.segment is segment:
                self._lose_record(known)

    def first_due_ms(self) -> int:
        """Return the engine time when the first delayed message is due, or 0 if none is delayed."""
        while self._due:
            due_ms, seq = self._due[0]
            known = self.tracked.get(seq)
            if known is not None and known.due_ms == due_ms:
                return due_ms
            heappop(self._due)  # the message was settled, or has another time now
        return 0

    def mature(self, now_ms: int) -> bool:
        """Make delayed messages that are due ready, at most MATURE_AT_ONCE; return whether there were any."""
        any_due = self.keys is not None and self.keys.mature(now_ms)
        for _ in range(MATURE_AT_ONCE):
            if not self._due or self._due[0][0] > now_ms:
                break
            due_ms, seq = heappop(self._due)
            known = self.tracked.get(seq)
            if known is None or known.due_ms != due_ms:
                continue  # the message was settled, or has another time now
            self._end_delay(known)
            any_due = True
            self._return(seq)
        return any_due

    def use_keys(self) -> None:
        """Apply changed options for keys."""
        if self.keys is None and self.reader.state.options.fair:
            self.make_keys()
        self.rewind()

    def enter_new(self, run: Run, messages: list[Message]) -> None:
        """Add messages that were just added to a run to the backlogs of their keys."""
        for level in self.levels:
            level.enter_new(self, run, messages)

    def rewind(self) -> None:
        """Start the cursors over, because messages have become pending behind them."""
        for level in self.levels:
            level.rewind(self)
        self._low = 0
        if self.keys is not None:
            self.keys.rewind()

    def lose_run(self, run: Run) -> None:
        """Leave a run that other runs have replaced."""
        for level in self.levels:
            level.lose_run(self, run)

    def first_pending(self, otherwise: int) -> int:
        """Return the first pending seq, or `otherwise` if nothing is pending."""
        if not self.pending:
            return otherwise
        runs = self.reader.runs
        run = runs.at_or_after(self._low)
        while run is not None:
            bits = run.pending(self.name)
            if bits:
                self._low = run.first + (bits & -bits).bit_length() - 1
                return self._low
            self._low = run.last + 1
            run = runs.at_or_after(self._low)
        return otherwise

    def is_delayed(self, seq: int) -> bool:
        known = self.tracked.get(seq)
        return known is not None and known.due_ms > 0

    def tries_of(self, seq: int) -> int:
        """Return how often a message that is not in flight was delivered before."""
        known = self.tracked.get(seq)
        return known.tries if known else int(seq <= self.level_of(seq).recovered)

    def level_of(self, seq: int) -> Level:
        if len(self.levels) == 1:
            return self.level
        run = self.reader.runs.find(seq)
        return self.level_numbered(run.level_of(seq)) if run is not None else self.level

    def level_numbered(self, number: int) -> Level:
        """Return a level by its number, and make it if there is none."""
        for level in self.levels:
            if level.number == number:
                return level
        level = Level(number, 0)
        self.levels = tuple(sorted([*self.levels, level], key=_rank, reverse=True))
        return level

    def _cache(self, message: Message | None) -> Message | None:
        """Keep a message in memory while it waits to be delivered again, if there is room; return it, or else None."""
        if message is None or self._cached >= CACHED_MESSAGES_MAX or len(message.body) > CACHED_BYTES_MAX:
            return None
        self._cached += 1
        return message

    # --- delivery

    def take(self, limit: int, is_dead: IsDead, oldest_every: int = 0) -> Taken:
        """Take the next deliveries, up to `limit`. With `oldest_every`, every delivery of that number is the oldest.

        There are fewer if messages have to be read from the disk first. They are read in the background, and then the
        queue has another turn.
        """
        is_fair = self.keys is not None and self.keys.is_fair
        if oldest_every and len(self.levels) > 1:
            return self._take_in_turns(limit, is_dead, oldest_every)
        taken = Taken()
        deliveries = taken.deliveries
        room = TAKE_BYTES_MAX
        keys = self.keys
        for level in self.levels:
            is_passed = level.number and level.cursor > self.reader.runs.levels.get(level.number, -1)
            if is_passed and not (level.returned or (keys is not None and keys.is_offered(level))):
                continue
            start = len(deliveries)
            if is_fair:
                level.enter(self, taken)
            while len(deliveries) < limit and room > 0 and taken.steps > 0:
                before, keys = len(deliveries), self.keys  # the first message with a key makes them
                if level.returned:
                    if keys is not None:
                        keys.take(level, deliveries, limit)
                    if len(deliveries) == before and not level.take_returned(self, taken, is_dead):
                        break
                elif keys is not None and is_fair:
                    room = keys.take_fair(level, taken, limit, is_dead, room)
                    break
                elif not level.take_fresh(self, taken, limit, is_dead):
                    break
                if len(deliveries) > before + 1 and (run := level.run) is not None:
                    share = (len(deliveries) - before) / (run.last - run.first + 1)
                    room -= int((run.end - run.offset) * share)
                elif len(deliveries) > before:
                    room -= len(deliveries[-1].message.body)
            if len(deliveries) > start:
                if self.keys is None or not self.keys.passes_over:
                    level.delivered = max(level.delivered, deliveries[-1].message.seq)
                else:
                    self._mark(level, deliveries[start:], taken)
            if taken.is_reading or len(deliveries) >= limit or room <= 0 or taken.steps <= 0:
                break
        for delivery in deliveries:
            self.in_flight[delivery.message.seq] = None
        self._count += len(deliveries)
        return taken

    def _mark(self, level: Level, deliveries: list[Delivery], taken: Taken) -> None:
        """Note what was taken of a level."""
        if self.keys is not None and self.keys.passes_over:
            self.keys.note_order(level, deliveries, taken)
        else:
            level.delivered = max(level.delivered, deliveries[-1].message.seq)

    def _take_in_turns(self, limit: int, is_dead: IsDead, every: int) -> Taken:
        """Take deliveries by priority, and one of `every` by age."""
        taken = Taken()
        room = TAKE_BYTES_MAX
        while len(taken.deliveries) < limit and room > 0 and taken.steps > 0 and not taken.is_reading:
            self._count %= every
            most = min(limit - len(taken.deliveries), every - 1 - self._count)
            more = self.take(most, is_dead) if most else self._take_oldest(is_dead)
            taken.deliveries += more.deliveries
            taken.handed += more.handed
            taken.dead += more.dead
            taken.is_reading = more.is_reading
            taken.steps = more.steps
            room -= sum([len(delivery.message.body) for delivery in more.deliveries])
            if len(more.deliveries) < max(most, 1):
                break
        return taken

    def _take_oldest(self, is_dead: IsDead) -> Taken:
        """Take the message with the lowest seq of all that may be delivered.

        In a fair queue, only the next message of each priority counts.
        """
        taken = Taken()
        levels = list(self.levels)
        while levels and not taken.deliveries:
            heads = [level.advance(self, taken) for level in levels]
            seq = min([head for head in heads if head], default=0)
            if not seq:
                break
            level = levels[heads.index(seq)]
            before = min([head for head in heads if head > seq], default=0)
            if level.returned:
                goes_on = level.take_returned(self, taken, is_dead)
            elif self.keys is not None and self.keys.is_fair:
                self.keys.take_fair(level, taken, 1, is_dead, TAKE_BYTES_MAX)
                goes_on = False
            else:
                goes_on = level.take_fresh(self, taken, 1, is_dead, before)
            if taken.is_reading or taken.steps <= 0:
                break
            if not goes_on:
                levels.remove(level)
            if taken.deliveries:
                self._mark(level, taken.deliveries, taken)
            for delivery in taken.deliveries:
                self.in_flight[delivery.message.seq] = None
                self._count += 1
        return taken

    def make_keys(self) -> Keys:
        """Make and return the keys of the group."""
        self.keys = Keys(self)
        return self.keys

    def record_first_try(self, delivery: Delivery, taken: Taken) -> None:
        """Record the first delivery of a message that no mark can cover."""
        seq = delivery.message.seq
        known = self.tracked.get(seq)
        if known is None:
            self._remember(seq, Tracked(0, 0, delivery.mature_ms))
        if known is None or known.segment is None:
            taken.handed.append(TriesRecord(self.name, seq, 1, 1, 0))

    def deliver_one(self, message: Message, taken: Taken, is_dead: IsDead) -> None:
        """Add one message to the deliveries, or to the dead messages."""
        seq = message.seq
        if seq in self.in_flight:  # it is on its way to the dead-letter queue
            return
        known = self.tracked.get(seq)
        if known is not None and known.message is not None:
            known.message = None
            self._cached -= 1
        tries = self.tries_of(seq)
        mature_ms = known.mature_ms if known and known.mature_ms else message.timestamp_ms
        if is_dead(self.name, message, tries):
            self.in_flight[seq] = None
            taken.dead.append(Delivery(message, tries, mature_ms))
            return
        if tries or (known is not None and known.segment is not None):  # the mark does not cover messages with a record
            if known is None:
                self._remember(seq, Tracked(tries, 0, mature_ms))
            taken.handed.append(TriesRecord(self.name, seq, 1, tries + 1, 0))
        taken.deliveries.append(Delivery(message, tries, mature_ms))


def _rank(level: Level) -> int:
    return priority_of(level.number)
