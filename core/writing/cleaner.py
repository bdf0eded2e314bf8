"""Makes room: drops the oldest segment when nothing in it is live, else copies forward what is.

Only ever the oldest goes, so a settle is never lost before its message, and one old unsettled message
never pins the log. Cleaning is asked for by a publish that does not fit, by settles that have used up
the room kept for them, and to erase: after a purge, and when an empty queue has been idle. What it does
step by step, and why it does not run for ever, is told in docs/engine.md ("The cleaner").
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.errors import CurbstoneError
from curbstone.core.log.commit import Segment
from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES, Released, entry_bytes
from curbstone.core.log.log import IDLE_BYTES_MAX, Log
from curbstone.core.log.room import RELEASE_BYTES
from curbstone.core.message import Message
from curbstone.core.pending.pending import Pending
from curbstone.core.pending.runs import Run, seqs_of
from curbstone.core.values import Done
from curbstone.core.writing.outbox import Outbox

COPY_BYTES_MAX = 128 * 1024


class Copy(NamedTuple):
    """What is copied forward in one batch: messages, or what is known of messages that lie elsewhere."""

    messages: list[Message]
    states: list[Released]


class Cleaner:
    """The cleaner of one queue."""

    __slots__ = (
        "_above_live", "_above_through", "_blocked", "_copying", "_erase_through", "_erased", "_futile_live", "_helped",
        "_last_segment", "_log", "_low_room", "_low_start", "_low_through", "_oldest", "_outbox", "_pending",
        "_recorded", "_short", "_todo", "_waits_for_drop",
    )  # fmt: skip

    def __init__(self, log: Log, pending: Pending, outbox: Outbox) -> None:
        self._log = log
        self._pending = pending
        self._outbox = outbox
        self._blocked = False
        self._waits_for_drop = False
        self._last_segment = 0
        self._futile_live: int | None = None
        self._low_room: int | None = None
        self._low_through = 0
        self._low_start = 0
        self._recorded = False
        self._above_live: int | None = None
        self._above_through = 0
        self._short = False
        self._helped = False
        self._erase_through = 0
        self._erased: list[Done] = []
        self._oldest: Segment | None = None
        self._todo: list[Run] = []
        self._copying: list[tuple[Run, int]] = []

    # --- what is asked for

    def can_make_room(self, size: int, largest: int | None = None) -> bool:
        """Return whether cleaning may make room for a publish of `size` bytes; if so it begins.

        It is one batch, or has pieces of up to `largest` bytes.
        """
        room = self._log.room
        live = self._pending.runs.bytes_live + room.tries_bytes
        if not room.fits_compacted(size, live, size if largest is None else largest) or not self._worth_trying():
            return False
        if not self._blocked:
            self._blocked = True
            self._waits_for_drop = True
            self._last_segment = self._log.active.number
        elif not self._helps:
            if self.droppable() and self._waits_for_drop:  # the next commit makes a little more room still
                self._waits_for_drop = False
                return True
            self._blocked = False
            self._futile_live = self._pending.runs.bytes_live
            return False
        return True

    @property
    def _helps(self) -> bool:
        """Whether there are segments left that were there when a publish began to wait."""
        return self._blocked and self._log.segments[0].number <= self._last_segment

    def _worth_trying(self) -> bool:
        """Return whether anything was settled since cleaning everything did not help."""
        if self._futile_live is not None and self._pending.runs.bytes_live >= self._futile_live:
            return False
        self._futile_live = None
        return True

    def unblocked(self) -> None:
        """No publish waits any more."""
        self._blocked = False

    def erase(self, on_done: Done | None = None) -> None:
        """Drop everything that is not live, and leave no file with its bytes."""
        self._erase_through = self._log.active.number
        if on_done is not None:
            self._erased.append(on_done)

    def trim(self) -> bool:
        """Begin to shrink an idle, empty queue; return whether there is anything to shrink."""
        if self._log.bytes <= IDLE_BYTES_MAX:
            return False
        self.erase()
        return True

    # --- what it wants of the next commit

    def recorded(self, taken: bool, left: bool) -> None:
        """A batch took settles or releases, or left some that found no room."""
        self._recorded |= taken
        self._short = left

    def _is_low(self) -> bool:
        """Return whether settles have used up so much of their room that segments have to go.

        Where one whole turn over the log brought nothing back, the next begins only when more is used up; or
        when some wait for room, and the last turn let others through.
        """
        log = self._log
        room = log.room.left - log.room.kept
        if room >= -(log.room.slack_bytes // 4):
            self._low_room = None
            self._low_through = 0
            return False
        if self._low_through and log.segments[0].number > self._low_through:
            self._helped = self._recorded or room > self._low_start
            self._low_room = room
            self._low_through = 0
            if self._short and not self._helped and self._outbox.owes_settles:
                log.exceed()  # only where the cap was made smaller than what settling takes
                return False
        if not self._low_through:
            is_lower = self._low_room is None or room <= self._low_room - log.room.slack_bytes // 8
            if not is_lower and not (self._short and self._helped):
                return False
            self._low_through = log.active.number
            self._low_start = room
            self._recorded = False
        return True

    def _is_above(self) -> bool:
        """Return whether the log is above its cap and a turn over it brings something back.

        The next turn begins when another segment's worth has been settled.
        """
        log = self._log
        if not log.room.excess:
            self._above_live = None
            return False
        if log.segments[0].number <= self._above_through:
            return True
        live = self._pending.runs.bytes_live + log.room.tries_bytes
        if self._above_live is not None and live > self._above_live - log.room.segment_bytes:
            return False
        self._above_live = live
        self._above_through = log.active.number
        return True

    @property
    def is_active(self) -> bool:
        """Whether segments have to go."""
        oldest = self._log.segments[0].number
        if oldest <= self._erase_through or (self._blocked and oldest <= self._last_segment):
            return True
        return (self._log.room.excess > 0 and self._is_above()) or self._is_low()

    @property
    def _erasing(self) -> bool:
        return self._log.segments[0].number <= self._erase_through

    @property
    def recycles(self) -> bool:
        """Whether files of dropped segments are worth keeping."""
        return not self._erasing

    def wants_roll(self) -> bool:
        """Return whether the oldest segment has to go and is the active one."""
        return len(self._log.segments) == 1 and self.is_active

    def droppable(self) -> int:
        """Return how many of the oldest segments have nothing live."""
        segments = self._log.segments
        count = 0
        while count < len(segments) - 1 and not segments[count].runs and not segments[count].states:
            count += 1
        return count

    def next_copy(self) -> Copy | None:
        """Return what an active cleaner copies forward next, or None: nothing to do, or it must be read first."""
        if len(self._log.segments) == 1:
            return None
        oldest = self._log.segments[0]
        if not oldest.runs:
            return self._collect_states(oldest) if oldest.states else None
        if self._oldest is not oldest or not self._todo:
            self._oldest = oldest
            self._todo = sorted(self._pending.runs.in_segment(oldest), key=lambda run: run.offset, reverse=True)
        return self._collect(oldest)

    def _collect_states(self, oldest: Segment) -> Copy | None:
        """Return the records of the oldest segment that still count; they take no more room than was kept for them."""
        groups = self._pending.groups.values()
        free = self._log.room.free - 4 * (SEGMENT_BYTES + BATCH_BYTES)
        most = min(COPY_BYTES_MAX, self._log.records_span, free) // RELEASE_BYTES
        if most <= 0:  # only where the cap was made smaller: the messages stay, their tries go with the next crash
            for group in groups:
                group.lose_records(oldest)
            return None
        return Copy([], [state for group in groups for state in group.states_in(oldest)][:most])

    def _collect(self, oldest: Segment) -> Copy | None:
        copies: list[Message] = []
        self._copying = []
        total = 0
        limit = min(COPY_BYTES_MAX, self._log.room.segment_bytes)
        while self._todo and total < limit:
            run = self._todo[-1]
            if run.segment is not oldest or not run.live():
                self._todo.pop()
                continue
            if run.messages is None:
                if not copies:
                    self._pending.load(run)
                break
            live = [run.messages[seq - run.first] for seq in seqs_of(run.first, run.live())]
            messages = [message for message in live if message is not None]
            size = sum(map(entry_bytes, messages))
            if copies and (total + size > limit or messages[-1].seq - copies[0].seq >= 1 << 32):
                break
            copies += messages
            total += size
            self._copying.append((run, size))
            self._todo.pop()
        copies.sort(key=lambda message: message.seq)
        return Copy(copies, []) if copies else None

    # --- what became of it

    def copied(self, segment: Segment, start: int, end: int) -> None:
        """The copies are on disk."""
        for run, size in self._copying:
            if run.live() and run.segment is not segment:
                self._pending.runs.move(run, segment, start, end, size)
        self._copying = []

    def failed(self) -> None:
        """The commit failed; whatever was being copied is where it was."""
        self._copying = []
        self._todo = []
        self._oldest = None

    def committed(self) -> None:
        """After each commit: tell those who wait for an erase that it is done."""
        if self._erased and not self._erasing:
            waiting, self._erased = self._erased, []
            for on_done in waiting:
                on_done(None)

    def end(self, error: CurbstoneError) -> None:
        """The queue ends: nothing more will be erased."""
        waiting, self._erased = self._erased, []
        for on_done in waiting:
            on_done(error)
