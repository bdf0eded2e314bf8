"""What the groups of one queue look in together: where its messages are, and what was read of them."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.agenda import Agenda
from curbstone.core.log.log import Log
from curbstone.core.log.room import Room
from curbstone.core.pending.expiries import Expiries
from curbstone.core.pending.reader import Reader
from curbstone.core.pending.runs import Run, Runs
from curbstone.core.state import QueueState


class Memory:
    """See the module's docstring."""

    __slots__ = ("agenda", "expiries", "reader", "room", "runs")

    def __init__(self, state: QueueState, agenda: Agenda, log: Log, damaged: Callable[[Run, str], None]) -> None:
        self.agenda = agenda
        self.room: Room = log.room
        self.runs = Runs()
        self.reader = Reader(state.host, log.disk, self.runs, state.shared.cache, damaged)
        self.expiries = Expiries(self.runs, agenda)

    def load(self, run: Run) -> None:
        """Read a run in the background, then have a turn in which all groups go on."""
        self.reader.load(run, self.agenda.wake_all)
