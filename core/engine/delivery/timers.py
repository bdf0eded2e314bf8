"""Ends delays, leases and expired messages when they are due, and sweeps out what an empty queue does not need."""

from __future__ import annotations

from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.delivery.leases import Leases
from curbstone.core.engine.delivery.ttl import expire_due
from curbstone.core.engine.parts import Parts

IDLE_MS = 1000


class Timers:
    """The timers of one queue. Parts of it pass the times when something is due to the queue's `Wakeups`."""

    __slots__ = ("_dead_letters", "_leases", "_parts")

    def __init__(self, parts: Parts, dead_letters: DeadLetters, leases: Leases) -> None:
        self._parts = parts
        self._dead_letters = dead_letters
        self._leases = leases

    def run(self) -> None:
        """Do what is due, as much as fits in one turn, and schedule the next turn."""
        parts = self._parts
        now_ms = parts.state.host.now_ms()
        groups = parts.index.groups
        for name, group in groups.items():
            if group.mature(now_ms):
                parts.wakeups.wake(name)
                parts.wakeups.changed()
                self._dead_letters.try_again()
        parts.limits.wake_due(now_ms)
        self._leases.end_due(now_ms)
        expire_due(parts, self._dead_letters, now_ms)
        dues = [group.next_due_ms for group in groups.values()]
        dues += [self._leases.next_due_ms, parts.index.expiries.next_due_ms, parts.limits.next_due_ms]
        due_ms = min((due for due in dues if due is not None), default=None)
        if due_ms is not None:
            parts.wakeups.at(due_ms)

    def sweep(self) -> None:
        """Drop from memory what an empty queue does not need."""
        index = self._parts.index
        index.dynamic_groups.sweep()
        for group in index.groups.values():
            group.sweep()
        index.expiries.sweep()
        self._leases.sweep()
