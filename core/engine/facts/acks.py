"""How far declared groups were acked, so that a reader that comes back with an old position can be refused.

The position of a group does not tell: it also moves on when messages expire or name other groups.
"""

from __future__ import annotations

from curbstone.core.engine.facts.of_groups import GroupNotes
from curbstone.core.engine.state import QueueState


class Acks(GroupNotes[int]):
    """By declared group of one queue, the last seq that a cumulative ack has named."""

    __slots__ = ()

    def __init__(self, state: QueueState) -> None:
        super().__init__(state, 0)

    def add(self, name: str, seq: int) -> None:
        """Note that a group was acked up to `seq`, inclusive. The ack has settled something, so a note has room."""
        if seq > self.of(name):
            self.set(name, seq)
