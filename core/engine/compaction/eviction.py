"""Decides which messages give way to a publish when the cap is reached.

A declared group may skip: then its messages give way even if they are delivered. In a queue that drops the oldest
(option `overflow`) the other groups give up messages too, but only those that are not in flight.

The oldest messages that are pending in no other groups are given up, up to the end of the segment they lie in, because
only whole segments make room. A group that skips gives up everything from its position to there, so it loses one
stretch. What a declared group loses is noted in the log, with the settles.

If the log is nearly all live, this is done before the cleaner begins a pass: that would copy much to gain little, again
and again.
"""

from __future__ import annotations

from collections.abc import Mapping

from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.runs import Run, mask_of
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.parts import Parts
from curbstone.core.values import UNNAMED

WORTH_CLEANING = 8
"""Cleaning is tried first if it recovers more than the cap divided by this."""


class Eviction:
    """Gives up the oldest messages of one queue."""

    __slots__ = ("_futile", "_parts")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._futile: tuple[int, int] | None = None
        """How many bytes were wanted, and how many pending messages had to stay, when giving up last made no room."""

    def is_due(self, size: int, largest: int) -> bool:
        """Return whether to give up messages before cleaning, which would bring too little for such a publish.

        It has `size` bytes, of which up to `largest` go into one batch.
        """
        return not self._fits(size, largest, self._live + self._parts.state.options.cap // WORTH_CLEANING)

    @property
    def _live(self) -> int:
        return self._parts.index.runs.bytes_live + self._parts.log.room.tries_bytes

    def give_up(self, size: int, largest: int) -> bool:
        """Give up as much as such a publish needs. If that can't be enough, change nothing and return False."""
        whole, partly = self._groups()
        staying = sum([group.pending for group in self._parts.index.groups.values()])
        staying -= sum([group.pending for group in whole]) + sum(
            [group.pending - len(group.in_flight) for group in partly]
        )
        if self._futile is not None and size >= self._futile[0] and staying >= self._futile[1]:
            return False
        end = self._end(size, largest, whole, partly)
        self._futile = None if end else (size, staying)
        for group in whole:
            position = group.first_pending(self._parts.state.committed_end)
            if position < end:
                lost = self._parts.index.clear_below(group, end)
                self._given_up(group, lost, end, [(position, end - position)])
        for group in partly:
            if group.pending:
                lost, ranges = self._parts.index.clear_not_in_flight(group, end)
                self._given_up(group, lost, end, ranges)
        self._parts.wakeups.changed()
        return end > 0

    def _groups(self) -> tuple[list[Group], list[Group]]:
        """Return the groups that give up everything, and those that keep messages in flight."""
        state = self._parts.state
        groups = [group for _name, group in sorted(self._parts.index.groups.items())]
        whole = [group for group in groups if group.name in state.meta.skips]
        partly = [group for group in groups if group.name not in state.meta.skips] if state.options.drops_oldest else []
        return whole, partly

    def _given_up(self, group: Group, lost: int, end: int, ranges: list[tuple[int, int]]) -> None:
        """A group has given up messages below `end`: have that written, and count it."""
        if not ranges:
            return
        self._parts.write_queue.settled_ranges(group.name, Reason.SKIPPED, ranges)
        self._parts.facts.lose(group.name, lost, min(end, group.first_pending(end)))
        if group.name not in self._parts.state.meta.groups:
            self._parts.state.stats.overflowed += lost
        self._parts.wakeups.wake(group.name)

    def _end(self, size: int, largest: int, whole: list[Group], partly: list[Group]) -> int:
        """Return the seq below which messages are to be given up, or 0 if that can't make enough room."""
        live = self._live
        freed = 0
        last: Run | None = None
        names = frozenset([group.name for group in whole])
        held = {group.name: sorted(group.in_flight) for group in partly}
        first = min([group.first_pending(self._parts.state.committed_end) for group in (*whole, *partly)])
        runs = self._parts.index.runs
        for run in runs.between(first, runs.end):
            is_boundary = last is not None and run.segment is not last.segment
            if is_boundary and freed >= size and self._fits(size, largest, live - freed):
                break
            freed += _freed(run, names, held)
            last = run
        return last.last + 1 if last is not None and freed and self._fits(size, largest, live - freed) else 0

    def _fits(self, size: int, largest: int, live: int) -> bool:
        return self._parts.log.room.fits_compacted(size, live, largest)


def _freed(run: Run, whole: frozenset[str], held: Mapping[str, list[int]]) -> int:
    """Return how many live bytes of a run are freed if the groups give up its messages.

    Groups in `whole` give up all of them; those in `held` all but the seqs that are listed there.
    """
    live = run.live()
    staying = 0
    for name in (UNNAMED, *(run.named or ())):
        if name not in whole:
            bits = run.pending(name)
            staying |= bits & mask_of(run.first, run.last, held[name]) if name in held else bits
    return run.bytes_of(live & ~staying)
