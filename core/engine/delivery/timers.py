"""What a queue does when its time has come: delays, leases, expiry, and a little housekeeping."""

from __future__ import annotations

from curbstone.core.engine.delivery.dead_letters import Deaths
from curbstone.core.engine.delivery.leasing import Leasing
from curbstone.core.engine.delivery.ttl import Expiry
from curbstone.core.engine.index.index import Pending
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda

IDLE_MS = 1000


class Timers:
    """The timers of one queue. Whoever has something that is due later tells the agenda when."""

    __slots__ = ("_agenda", "_deaths", "_expiry", "_leasing", "_pending", "_state")

    def __init__(
        self, state: QueueState, agenda: Agenda, pending: Pending, deaths: Deaths, expiry: Expiry, leasing: Leasing
    ) -> None:
        self._state = state
        self._agenda = agenda
        self._pending = pending
        self._deaths = deaths
        self._expiry = expiry
        self._leasing = leasing

    def run(self) -> None:
        """Do what is due, and have a turn again when the next thing is."""
        now_ms = self._state.host.now_ms()
        groups = self._pending.groups
        for name, group in groups.items():
            if group.mature(now_ms):
                self._agenda.wake(name)
                self._agenda.changed()
                self._deaths.try_again()
        self._leasing.end_due(now_ms)
        self._expiry.expire_due(now_ms)
        dues = [group.next_due_ms for group in groups.values()]
        dues += [self._leasing.next_due_ms, self._pending.expiries.next_due_ms]
        due_ms = min((due for due in dues if due is not None), default=None)
        if due_ms is not None:
            self._agenda.at(due_ms)

    def sweep(self) -> None:
        """Drop from memory what an empty queue has no use for."""
        self._pending.undeclared.sweep()
        for group in self._pending.groups.values():
            group.sweep()
        self._pending.expiries.sweep()
        self._leasing.sweep()
