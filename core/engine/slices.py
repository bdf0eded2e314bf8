"""Long work on many messages, done in slices: some in each turn of the loop, for all queues of a server together.

A consumer may hold a million messages. If it leaves, giving them back at once would stop the server for seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.host import Host

STEPS_AT_ONCE = 1000
"""How many messages are dealt with in one turn. Giving one back takes about 5 µs."""

Work = Callable[[int], int]
"""Deals with at most so many messages, and returns with how many; with fewer if these were the last ones."""


class Slices:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[Work] = deque()
        self._left = 0
        """How many messages may still be dealt with in this turn."""
        self._is_set = False

    def begin(self, work: Work) -> None:
        """Do some work: at once if this turn has time for it, otherwise behind all that was begun before."""
        self._waiting.append(work)
        if not self._is_set:
            self._next_turn()
        elif len(self._waiting) == 1:
            self._proceed()

    def _next_turn(self) -> None:
        self._is_set = bool(self._waiting)
        if self._is_set:
            self._left = STEPS_AT_ONCE
            self._host.call_soon(self._next_turn)
            self._proceed()

    def _proceed(self) -> None:
        while self._waiting and self._left > 0:
            most = self._left
            done = self._waiting[0](most)
            self._left -= max(done, 1)
            if done < most:
                self._waiting.popleft()
