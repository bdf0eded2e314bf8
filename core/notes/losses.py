"""What declared groups have lost: messages given up at the cap, or purged, before the group was done with them.

Kept as notes in the log. A group's note is written in the batch with the settles it tells of, and once
more when the segment with the last one is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


class Loss(NamedTuple):
    """How many messages a group has lost in its life; the last of them is below the seq `floor`."""

    floor: int = 0
    lost: int = 0


NOTHING = Loss()


class Losses:
    """The losses of one queue's declared groups."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._losses: dict[str, Loss] = {}
        self._logged: dict[str, Loss] = {}
        self._noted: dict[str, int] = {}
        """The segments with the last notes."""

    def of(self, name: str) -> Loss:
        """Return what a group has lost."""
        return self._losses.get(name, NOTHING)

    def add(self, name: str, count: int, floor: int) -> None:
        """A group has lost `count` messages below `floor`."""
        if count and name in self._queue.meta.groups:
            before = self.of(name)
            self._losses[name] = Loss(max(before.floor, floor), before.lost + count)
            self._queue.stats.lost += count

    def forget(self, name: str) -> None:
        """A group is no longer declared; the log is told before another of that name may be."""
        self._losses.pop(name, None)

    def to_log(self, floor: int) -> dict[str, Loss]:
        """Return what the log does not know yet, or no longer will once the segments below `floor` are dropped."""
        if not self._losses and not self._logged:
            return {}
        return {
            name: self.of(name)
            for name in sorted(self._losses.keys() | self._logged.keys())
            if self.of(name) != self._logged.get(name, NOTHING) or (name in self._losses and self._noted[name] < floor)
        }

    def logged(self, losses: dict[str, Loss], segment: int) -> None:
        """The log knows of these now; the notes are in that segment."""
        for name, loss in losses.items():
            self._noted[name] = segment
            if loss == NOTHING:
                self._logged.pop(name, None)
            else:
                self._logged[name] = loss

    def recover(self, name: str, loss: Loss, segment: int, *, is_earlier: bool) -> None:
        """Take a note in; `is_earlier` where it is of an earlier group of that name."""
        self.logged({name: loss}, segment)
        if name in self._queue.meta.groups and not is_earlier:
            self._losses[name] = loss
