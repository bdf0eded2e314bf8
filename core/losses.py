"""What declared groups have lost: messages given up at the cap, or purged, before the group was done with them.

Kept as notes in the log. A group's note is written in the batch with the settles it tells of, and once
more whenever segments are dropped, since the one with the last note may be among them.
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

    def to_log(self, *, everything: bool) -> dict[str, Loss]:
        """Return what the log does not know yet, or `everything` that is to be known."""
        if not self._losses and not self._logged:
            return {}
        names = self._losses.keys() | self._logged.keys()
        return {
            name: self.of(name)
            for name in sorted(names)
            if self.of(name) != self._logged.get(name, NOTHING) or (everything and name in self._losses)
        }

    def logged(self, losses: dict[str, Loss]) -> None:
        """The log knows of these now."""
        for name, loss in losses.items():
            if loss == NOTHING:
                self._logged.pop(name, None)
            else:
                self._logged[name] = loss

    def recover(self, name: str, floor: int, lost: int, *, is_earlier: bool) -> None:
        """Take a note in; `is_earlier` where it is of an earlier group of that name."""
        self.logged({name: Loss(floor, lost)})
        if name in self._queue.meta.groups and not is_earlier:
            self._losses[name] = Loss(floor, lost)
