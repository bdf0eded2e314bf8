"""The queues that want a turn, called at the end of this turn of the loop: what a turn gathers is written at once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from curbstone.core.breakdown import contained

if TYPE_CHECKING:
    from curbstone.core.host import Host
    from curbstone.core.queue import Queue

TURNS_AT_ONCE = 16
"""Queues that have their turn before the loop looks at its sockets again: nobody waits for a thousand of them."""


class Turns:
    """See the module's docstring."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._dirty: dict[Queue, None] = {}  # in order, so that a simulated run can be repeated
        self._is_set = False

    def __len__(self) -> int:
        return len(self._dirty)

    def add(self, queue: Queue) -> None:
        """Have a queue's turn called; once, however often it is added before."""
        self._dirty[queue] = None
        if not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_set = False
        if len(self._dirty) <= TURNS_AT_ONCE:
            now, self._dirty = list(self._dirty), {}
        else:
            now = list(islice(self._dirty, TURNS_AT_ONCE))
            for queue in now:
                del self._dirty[queue]
        for queue in now:
            contained(queue, queue.turn)
        if self._dirty and not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)
