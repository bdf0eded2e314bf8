"""What the groups of one queue share: the index of its messages, and the messages that are in memory."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.index.expiries import Expiries
from curbstone.core.engine.index.reader import Reader
from curbstone.core.engine.index.runs import Run, Runs
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.log.room import Room
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.values import Done


def at_once(on_done: Done) -> None:
    """Call back at once, for a queue that writes nothing: all that is settled in it is on disk already."""
    on_done(None)


class Memory:
    """See the module's docstring."""

    __slots__ = ("_state", "agenda", "expiries", "reader", "room", "runs", "when_written")

    def __init__(
        self,
        state: QueueState,
        agenda: Agenda,
        log: Log,
        damaged: Callable[[Run, str], None],
        when_written: Callable[[Done], None],
    ) -> None:
        """`when_written` calls back when everything that was settled so far is on disk."""
        self._state = state
        self.agenda = agenda
        self.when_written = when_written
        self.room: Room = log.room
        self.runs = Runs()
        self.reader = Reader(state.host, log, state.shared.cache, damaged)
        self.expiries = Expiries(self.runs, agenda)

    @property
    def is_closed(self) -> bool:
        """Whether the queue has ended."""
        return self._state.is_closed

    def load(self, run: Run) -> None:
        """Read a run in the background; then the queue has a turn in which all groups go on."""
        self.reader.load(run, self.agenda.wake_all)
