"""Up to where declared groups were acked: by that a reader that comes back with an old position is told.

The group's position does not say it: that also moves on where messages expire, or name other groups.
"""

from __future__ import annotations

from curbstone.core.notes.of_groups import GroupNotes
from curbstone.core.state import QueueState


class Acks(GroupNotes[int]):
    """The last seqs that the cumulative acks of one queue's declared groups named."""

    __slots__ = ()

    def __init__(self, state: QueueState) -> None:
        super().__init__(state, 0)

    def add(self, name: str, seq: int) -> None:
        """A group was acked up to and with `seq`, and that settled something: so the log has room to say it."""
        if seq > self.of(name):
            self.set(name, seq)
