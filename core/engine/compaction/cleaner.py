"""Decides when segments have to be dropped, so that there is room. It always drops the oldest one.

What is live in the oldest segment is copied to the end of the log (`relocate`); a segment in which nothing is live is
dropped. Because the oldest is dropped first, a settle is never lost before its message. Because it is dropped whatever
it holds, one old message that is never settled does not keep the log from shrinking.

There are four reasons to clean. For each of them the cleaner is in one of these states:

    reason            state      what happens                                             next state
    ----------------  ---------  -------------------------------------------------------  ----------
    a publish has     RESTING    one has no room, but would if only live data stayed      CLEANING
    no room           CLEANING   it was taken, or none waits any more                     RESTING
                      CLEANING   the pass ends; something was settled since it began      CLEANING
                      CLEANING   the pass ends; the next commit still drops a segment     LAST_DROP
                      CLEANING   the pass ends: the publish is refused                    SPENT
                      LAST_DROP  it was taken, or none waits any more                     RESTING
                      LAST_DROP  it still has no room: it is refused                      SPENT
                      SPENT      something was settled since, and one has no room         CLEANING
    settles have      RESTING    a quarter of the slack is used up                        CLEANING
    used up the       CLEANING   the pass ends                                            SPENT
    room kept for     SPENT      an eighth of the slack more is used up; or some settles
    them                         wait for room, and the last pass helped, or none
                                 waited when it ended                                     CLEANING
                      any        less than that quarter is used up                        RESTING
    the log is        RESTING    it is found above its cap                                CLEANING
    above its cap     CLEANING   the pass ends                                            SPENT
                      SPENT      a segment's worth was settled since the pass began       CLEANING
    to erase          RESTING    a purge asks for it, or an empty queue is idle           CLEANING
                      CLEANING   the pass ends: the callers are notified                  RESTING

A pass covers the log once: it ends when all segments that were there when it began have been dropped. SPENT keeps the
cleaner from turning for ever when there is nothing to gain: a whole pass has recovered all that it could.

`review`, `make_room` and `erase` move the states, `dropped` ends an erase. All else here only reads them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from curbstone.core.engine.compaction.eviction import Eviction
from curbstone.core.engine.compaction.relocate import Relocation
from curbstone.core.engine.compaction.retention import Retention
from curbstone.core.engine.log.log import IDLE_BYTES_MAX, Log
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import Done


class PassState(Enum):
    RESTING = "resting"
    CLEANING = "cleaning"
    LAST_DROP = "last drop"
    SPENT = "spent"


RESTING, CLEANING, LAST_DROP, SPENT = PassState


class _Reason:
    """One reason to clean: its state, and its pass."""

    __slots__ = ("_log", "state", "through")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.state = RESTING
        self.through = 0
        """The number of the last segment that was there when the pass began."""

    def begin(self) -> None:
        self.state = CLEANING
        self.through = self._log.active.number

    @property
    def is_over(self) -> bool:
        return self._log.segments[0].number > self.through


class _ForPublish(_Reason):
    """A publish has no room."""

    __slots__ = ("_live_then",)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._live_then = 0
        """Bytes that were live when the pass began."""

    @property
    def is_spent(self) -> bool:
        """Whether a whole pass has brought back what it could."""
        return self.state is SPENT or (self.state is not RESTING and self.is_over)

    def gains(self, live: int) -> bool:
        """Return whether a pass may bring something back."""
        return not self.is_spent or live < self._live_then

    def ask(self, live: int, *, drops: bool) -> bool:
        """Begin a pass for a publish, unless one is under way; return False if that can't help, so it is not to wait.

        `drops`: whether the next commit drops a segment.
        """
        is_spent = self.is_spent
        if self.state is RESTING or (is_spent and live < self._live_then):
            self.begin()
            self._live_then = live
        elif self.state is CLEANING and is_spent and drops:
            self.state = LAST_DROP
        elif is_spent:
            self.state = SPENT
            return False
        return True


class ForSettles(_Reason):
    """Settles have used up the room that is kept for them."""

    __slots__ = ("_has_helped", "_has_recorded", "_is_short", "_owed_then", "_room_then")

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._room_then = 0
        """The room there was when the pass began, or when it was spent."""
        self._has_helped = False
        """Whether the last pass brought room back, or a batch took settles or releases during it."""
        self._has_recorded = False
        """Whether a batch took settles or releases since the pass began."""
        self._is_short = False
        """Whether settles or releases found no room in the last batch."""
        self._owed_then = False
        """Whether settles or releases waited for room when the pass ended, and still do: the pass did not help them."""

    def recorded(self, *, taken: bool, left: bool) -> None:
        """A batch was made: whether it has settles or releases, and whether some found no room in it."""
        self._has_recorded |= taken
        self._is_short = left
        if taken or not left:
            self._owed_then = False

    def review(self, room: int, *, owes_records: bool) -> None:
        """End a pass that is complete, and begin one if it may help; `room` is what is left.

        To be called when more than a quarter of the slack is used up.
        """
        if self.state is CLEANING and self.is_over:
            self._has_helped = self._has_recorded or room > self._room_then
            self.state, self._room_then, self._owed_then = SPENT, room, owes_records
            if self._is_short and not self._has_helped and owes_records:
                self._log.exceed()  # happens only if the cap was made smaller than what settling needs
                return
        if self.state is SPENT:
            is_lower = room <= self._room_then - self._log.room.slack_bytes // 8
            may_help = self._has_helped or (owes_records and not self._owed_then)
            if not (is_lower or (self._is_short and may_help)):
                return
        if self.state is not CLEANING:
            self.begin()
            self._room_then = room
            self._has_recorded = False


class _ForCap(_Reason):
    """The log is above its cap."""

    __slots__ = ("_live_then",)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self._live_then = 0
        """Bytes that were live when the pass began."""

    def review(self, live: int) -> None:
        """End a pass that is complete, and begin one if it may recover something."""
        if self.state is CLEANING and not self.is_over:
            return
        if self.state is not RESTING and live > self._live_then - self._log.room.segment_bytes:
            self.state = SPENT
            return
        self.begin()
        self._live_then = live


class Plan(NamedTuple):
    """What the next commit does to make room."""

    drops: int
    """How many of the oldest segments go with it."""
    rolls: bool
    """Whether it begins a new segment, because the active one is the oldest and has to go."""
    recycles: bool
    """Whether files of dropped segments may be used again; not while something is to be erased."""


class Cleaner:
    __slots__ = (
        "_cap", "_erase", "_erased", "_eviction", "_log", "_parts", "_publish", "_state", "for_settles",
        "relocation", "retention",
    )  # fmt: skip

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._state = parts.state
        log = self._log = parts.log
        self.retention = Retention(parts)
        self._eviction: Eviction | None = None
        """None until a queue that may give up messages needs room."""
        self._publish = _ForPublish(log)
        self.for_settles = ForSettles(log)
        self._cap = _ForCap(log)
        self._erase = _Reason(log)
        self._erased: list[Done] = []
        self.relocation = Relocation(parts)

    # --- requests

    def make_room(self, size: int, largest: int | None = None) -> bool:
        """Begin to make room for a publish of `size` bytes, or return False if nothing helps.

        The publish goes into one batch, or into several of up to `largest` bytes each. If cleaning is not enough,
        groups that allow it give up messages.
        """
        state = self._parts.state
        if not (state.meta.skips or state.options.drops_oldest):
            return self.clean_for(size, largest)
        eviction = self._eviction = self._eviction or Eviction(self._parts)
        piece = size if largest is None else largest
        if eviction.is_due(size, piece) and eviction.give_up(size, piece):
            return self.clean_for(size, largest)
        return self.clean_for(size, largest) or (eviction.give_up(size, piece) and self.clean_for(size, largest))

    def clean_for(self, size: int, largest: int | None = None) -> bool:
        """Like `make_room`, but no messages are given up."""
        live, room = self._parts.index.runs.bytes_live, self._log.room
        self.retention.give_way()
        if not room.fits_compacted(size, live + room.tries_bytes, size if largest is None else largest):
            return False
        return self._publish.ask(live, drops=self.droppable() > 0)

    @property
    def may_help_publish(self) -> bool:
        """Whether cleaning may bring back room for a publish; nothing begins."""
        segments = self._log.segments  # none while the queue is being created
        can_drop = len(segments) > 1 and not (segments[0].runs or segments[0].tries_records)
        return can_drop or self._publish.gains(self._parts.index.runs.bytes_live)

    def unblocked(self) -> None:
        """A publish was taken, or none waits any more."""
        if self._publish.state is not SPENT and not self._parts.write_queue.waiting_for_room:
            self._publish.state = RESTING

    def erase(self, on_done: Done | None = None) -> None:
        """Drop everything that is not live, and leave no file with its bytes; then call `on_done(error)`."""
        self._erase.begin()
        if on_done is not None:
            self._erased.append(on_done)

    def trim(self) -> bool:
        """Begin to shrink the log of an idle, empty queue; return False if there is nothing to shrink now."""
        if self._log.bytes <= IDLE_BYTES_MAX:
            return False
        due_ms = self.retention.idle_until_ms
        if self._parts.state.host.now_ms() < due_ms:
            self._parts.wakeups.at(due_ms)
            return False
        self.erase()
        return True

    # --- before each batch

    def review(self) -> bool:
        """Begin the passes that the log needs now, and end those that are over; return whether segments have to go."""
        if self._state.options.undo:
            self.retention.review(self._dead())
        oldest = self._log.segments[0].number
        if oldest <= self._erase.through or (oldest <= self._publish.through and self._publish.state is CLEANING):
            return True  # that pass makes room for all; whether it was enough is clear when it ends
        room = self._log.room
        if room.excess > 0:
            self._cap.review(self._parts.index.runs.bytes_live + room.tries_bytes)
            if self._cap.state is CLEANING:
                return self.is_cleaning
        left = room.left - room.kept - room.split_bytes
        if left >= -(room.slack_bytes // 4):
            self.for_settles.state = RESTING
            return False
        self.for_settles.review(left, owes_records=self._parts.write_queue.owes_records)
        return self.is_cleaning

    @property
    def is_cleaning(self) -> bool:
        oldest = self._log.segments[0].number
        return (
            oldest <= self._erase.through
            or (oldest <= self._publish.through and self._publish.state is CLEANING)
            or (oldest <= self._cap.through and self._cap.state is CLEANING and self._log.room.excess > 0)
            or (oldest <= self.for_settles.through and self.for_settles.state is CLEANING)
        )

    def plan(self, *, emptied: bool) -> Plan:
        """Return what the next commit is to do. For `emptied` see `droppable`."""
        segments = self._log.segments
        recycles = segments[0].number > self._erase.through
        if len(segments) > 1:
            return Plan(self.droppable(emptied=emptied), False, recycles)
        return Plan(int(emptied), self.is_cleaning, recycles)

    def droppable(self, *, emptied: bool = False) -> int:
        """Return how many of the oldest segments have nothing live and are to go with the next commit.

        `emptied`: what is still live in the oldest one is copied by that same commit, so it is dropped, too.
        """
        count = self._dead(int(emptied))
        if not (count and self._parts.state.options.undo) or emptied:
            return count
        return count if self._log.segments[0].number <= self._erase.through else self.retention.droppable_now(count)

    def _dead(self, first: int = 0) -> int:
        """Return how many of the oldest segments have nothing live, without asking about those before `first`."""
        segments = self._log.segments
        count = first
        while count < len(segments) - 1 and not segments[count].runs and not segments[count].tries_records:
            count += 1
        return count

    # --- what became of it

    def dropped(self) -> None:
        """A commit that drops segments is on disk: if it has ended an erase, notify the callers of that."""
        if self._erase.state is CLEANING and self._erase.is_over:
            self._erase.state = RESTING
            waiting, self._erased = self._erased, []
            for on_done in waiting:
                self._parts.state.host.notify(on_done, None)

    def end(self, error: CurbstoneError) -> None:
        """The queue ends: nothing more will be erased."""
        waiting, self._erased = self._erased, []
        for on_done in waiting:
            self._parts.state.host.notify(on_done, error)
