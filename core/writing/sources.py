"""What the batches of one queue are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from curbstone.core.agenda import Agenda
from curbstone.core.log.log import Log
from curbstone.core.notes.notes import Notes
from curbstone.core.pending.pending import Pending
from curbstone.core.state import QueueState
from curbstone.core.writing.cleaner import Cleaner
from curbstone.core.writing.outbox import Outbox


class MakesRoom(Protocol):
    """Makes room for a publish that has none."""

    def __call__(self, size: int, largest: int | None = None) -> bool:
        """Return whether room may be made for `size` bytes, in pieces of up to `largest`; if so that has begun."""


class Sources(NamedTuple):
    """What the batches of one queue are made of."""

    state: QueueState
    agenda: Agenda
    log: Log
    pending: Pending
    notes: Notes
    outbox: Outbox
    cleaner: Cleaner
    room: Callable[[str, int], int]
    """How many deliveries the takers of a group take now, of so many."""
    drop_unwanted_pops: Callable[[], None]
    """Gives back what nobody is left to take."""
    make_room: MakesRoom
