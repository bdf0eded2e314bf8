"""Groups that may be overtaken: what they have not read gives way to what is published.

The oldest messages that are pending in such groups alone are given up, up to the end of the segment they
lie in, since only whole segments make room. A group gives up everything from its position to there, so
what it loses is one stretch, and the loss is noted in the log with the settles.

That comes before the cleaner turns over a log that is nearly all live: it would copy much to gain little, again
and again.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.agenda import Agenda
from curbstone.core.log.format import Reason
from curbstone.core.log.log import Log
from curbstone.core.notes.losses import Losses
from curbstone.core.pending.pending import Pending
from curbstone.core.pending.runs import Run
from curbstone.core.state import QueueState
from curbstone.core.writing.outbox import Outbox

WORTH_CLEANING = 8
"""Cleaning comes first where it brings back more than one part in so many of the cap."""


class Skipping:
    """The groups of one queue that skip."""

    __slots__ = ("_agenda", "_end_deliveries", "_futile", "_losses", "_outbox", "_pending", "_room", "_state")

    def __init__(
        self,
        state: QueueState,
        agenda: Agenda,
        log: Log,
        pending: Pending,
        losses: Losses,
        outbox: Outbox,
        end_deliveries: Callable[[str, list[int]], None],
    ) -> None:
        self._state = state
        self._agenda = agenda
        self._room = log.room
        self._pending = pending
        self._losses = losses
        self._outbox = outbox
        self._end_deliveries = end_deliveries
        self._futile: int | None = None
        """How much the other groups waited for when giving up could not make room."""

    def is_due(self, size: int, largest: int) -> bool:
        """Return whether cleaning would bring too little for a publish of `size` bytes, `largest` at most at once."""
        return not self._room.fits_compacted(size, self._live + self._state.options.cap // WORTH_CLEANING, largest)

    @property
    def _live(self) -> int:
        return self._pending.runs.bytes_live + self._room.tries_bytes

    def give_up(self, size: int, largest: int) -> bool:
        """Give up as much as such a publish needs; False, and nothing changes, where that is not enough."""
        skips = self._state.meta.skips
        others = sum([group.pending for group in self._pending.groups.values() if group.name not in skips])
        if self._futile is not None and others >= self._futile:
            return False
        groups = [self._pending.groups[name] for name in sorted(skips)]
        end = self._end(size, largest, min(group.first_pending(self._state.committed_end) for group in groups))
        self._futile = None if end else others
        for group in groups:
            position = group.first_pending(self._state.committed_end)
            if position < end:
                lost, ended = self._pending.clear_below(group, end)
                self._end_deliveries(group.name, ended)
                self._outbox.settled_ranges(group.name, Reason.SKIPPED, [(position, end - position)])
                self._losses.add(group.name, lost, end)
                self._agenda.wake(group.name)
        self._agenda.changed()
        return end > 0

    def _end(self, size: int, largest: int, first: int) -> int:
        """Return the seq below which giving up makes enough room, or 0 where nothing does."""
        live = self._live
        freed = 0
        last: Run | None = None
        run = self._pending.runs.at_or_after(first)
        while run is not None:
            is_boundary = last is not None and run.segment is not last.segment
            if is_boundary and freed >= size and self._fits(size, largest, live - freed):
                break
            freed += _freed(run, self._state.meta.skips)
            last = run
            run = self._pending.runs.at_or_after(run.last + 1)
        return last.last + 1 if last is not None and freed and self._fits(size, largest, live - freed) else 0

    def _fits(self, size: int, largest: int, live: int) -> bool:
        return self._room.fits_compacted(size, live, largest)


def _freed(run: Run, names: frozenset[str]) -> int:
    """Return the bytes of the messages that only these groups wait for."""
    live = run.live()
    others = run.bits
    for name, bits in (run.named or {}).items():
        if name not in names:
            others |= bits
    return run.bytes_live * (live & ~others).bit_count() // live.bit_count() if live else 0
