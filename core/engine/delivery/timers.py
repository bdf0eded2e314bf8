"""What a queue does when its time has come: delays, leases, expiry, and a little housekeeping."""

from __future__ import annotations

from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.delivery.leasing import Leasing
from curbstone.core.engine.delivery.ttl import Ttl
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda

IDLE_MS = 1000


class Timers:
    """The timers of one queue. Whoever has something that is due later tells the agenda when."""

    __slots__ = ("_agenda", "_dead_letters", "_expiry", "_index", "_leasing", "_state")

    def __init__(
        self, state: QueueState, agenda: Agenda, index: Index, dead_letters: DeadLetters, expiry: Ttl, leasing: Leasing
    ) -> None:
        self._state = state
        self._agenda = agenda
        self._index = index
        self._dead_letters = dead_letters
        self._expiry = expiry
        self._leasing = leasing

    def run(self) -> None:
        """Do what is due, and have a turn again when the next thing is."""
        now_ms = self._state.host.now_ms()
        groups = self._index.groups
        for name, group in groups.items():
            if group.mature(now_ms):
                self._agenda.wake(name)
                self._agenda.changed()
                self._dead_letters.try_again()
        self._leasing.end_due(now_ms)
        self._expiry.expire_due(now_ms)
        dues = [group.next_due_ms for group in groups.values()]
        dues += [self._leasing.next_due_ms, self._index.expiries.next_due_ms]
        due_ms = min((due for due in dues if due is not None), default=None)
        if due_ms is not None:
            self._agenda.at(due_ms)

    def sweep(self) -> None:
        """Drop from memory what an empty queue has no use for."""
        self._index.dynamic_groups.sweep()
        for group in self._index.groups.values():
            group.sweep()
        self._index.expiries.sweep()
        self._leasing.sweep()
