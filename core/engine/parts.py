"""The parts of one queue, which code in `commit/`, `compaction/` and `delivery/` takes as a whole.

The parts themselves do not use it.
"""

from __future__ import annotations

from curbstone.core.engine.delivery.limits import Limits
from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.facts.tallies import Tallies
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.turns import Wakeups
from curbstone.core.engine.write_queue import WriteQueue


class Parts:
    """`engine.queue` makes one for each queue. Folders above `engine/index/` take it; those below it are its fields."""

    __slots__ = ("facts", "index", "limits", "log", "state", "tallies", "wakeups", "write_queue")

    def __init__(
        self, state: QueueState, wakeups: Wakeups, log: Log, index: Index, facts: Facts, write_queue: WriteQueue
    ) -> None:
        self.state = state
        self.wakeups = wakeups
        self.log = log
        self.index = index
        self.facts = facts
        self.write_queue = write_queue
        self.limits = Limits(state, wakeups)
        self.tallies: Tallies | None = None
        """The batches of messages; None as long as there never were any."""

    def count_batches(self) -> Tallies:
        """Return the tallies, which the queue has from now on."""
        if self.tallies is None:
            self.tallies = Tallies(self.state, self.facts)
        return self.tallies
