"""What declared groups have lost: messages that were given up at the cap, or purged, before the group settled them."""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.engine.facts.of_groups import GroupNotes
from curbstone.core.engine.state import QueueState


class Loss(NamedTuple):
    """How many messages a group has lost in its life; the last of them is below the seq `floor`."""

    floor: int = 0
    lost: int = 0


NOTHING = Loss()


class Losses(GroupNotes[Loss]):
    """The losses of one queue's declared groups."""

    __slots__ = ()

    def __init__(self, state: QueueState) -> None:
        super().__init__(state, NOTHING)

    def add(self, name: str, count: int, floor: int) -> None:
        """Count `count` messages below `floor` that a group has lost."""
        if count and name in self.state.meta.groups:
            before = self.of(name)
            self.set(name, Loss(max(before.floor, floor), before.lost + count))
            self.state.stats.lost += count
