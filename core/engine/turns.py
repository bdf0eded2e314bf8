"""Gives queues their turns at the end of a turn of the loop, so that all it has gathered for a queue is one commit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from curbstone.core.engine.syncer import Syncer
from curbstone.core.host import Host

TURNS_AT_ONCE = 16
"""After so many queues the time is looked at, so that the loop's sockets do not wait for a thousand queues."""
TURN_US_MAX = 50_000
"""When this time is over, the other queues have their turns after the loop has looked at its sockets."""


Turn = Callable[[], object]
"""The turn of a queue. It never raises."""


class Turns:
    """See the module's docstring."""

    def __init__(self, host: Host, syncer: Syncer) -> None:
        self._host = host
        self._syncer = syncer
        self._dirty: dict[Turn, None] = {}  # in order, so that a simulated run can be repeated
        self._is_set = False

    def __len__(self) -> int:
        return len(self._dirty)

    def add(self, turn: Turn) -> None:
        """Have a queue's turn called: once, however often it is added."""
        self._dirty[turn] = None
        if not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_set = False
        now, self._dirty = self._dirty, {}
        if len(now) == 1:
            for turn in now:
                turn()
        else:
            self._turn_of_many(now)
        if self._dirty and not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)

    def _turn_of_many(self, now: dict[Turn, None]) -> None:
        end_us = self._host.now_us() + TURN_US_MAX
        self._syncer.begin_turn()
        for had, turn in enumerate(now, 1):
            turn()
            if had % TURNS_AT_ONCE == 0 and had < len(now) and self._host.now_us() >= end_us:
                self._dirty = dict.fromkeys(islice(now, had, None)) | self._dirty
                break
        self._syncer.end_turn()
