"""What the batches of one queue are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.facts.facts import Notes
from curbstone.core.engine.index.pending import Pending
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.engine.write_queue import Outbox


class MakesRoom(Protocol):
    """Has room made for a publish that has none."""

    def __call__(self, size: int, largest: int | None = None) -> bool:
        """Return whether room may be made for `size` bytes, in pieces of up to `largest`; if so, it has begun."""


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
    """`room(group, messages)` returns how many of so many messages the takers of a group would take now."""
    drop_unwanted_pops: Callable[[], None]
    """Gives back the messages of pops that nobody is left to take."""
    make_room: MakesRoom
