"""Demands that publishes to one queue are answered in their order, whatever becomes of each, and everything in the end.

A client may tell by the order alone whose answer it gets; and what was confirmed says that all before it is on disk.
Where no disk fails, whatever was asked for is answered as soon as nothing is left to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from curbstone.core.errors import CurbstoneError
from curbstone.core.values import Done, Published
from tests.sim.history import History, Violation


class _Asked:
    """One call that publishes."""

    def __init__(self, count: int) -> None:
        self.left = count


class Answers:
    """See the module's docstring."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._asked: dict[Hashable, deque[_Asked]] = {}
        self._settles: dict[object, str] = {}

    def started(self) -> None:
        """A crash: nobody is answered any more."""
        self._asked.clear()
        self._settles.clear()

    def settled(self, what: str, done: Done) -> Done:
        """Return `done` for the next call that settles."""
        asked = object()
        self._settles[asked] = what

        def answered(error: CurbstoneError | None) -> None:
            self._settles.pop(asked, None)
            done(error)

        return answered

    @property
    def owed(self) -> list[str]:
        """What was asked for and not answered."""
        return [*self._settles.values(), *(f"publish to {queue}" for queue, asked in self._asked.items() if asked)]

    def in_order(self, queue: Hashable, count: int, done: Published) -> Published:
        """Return `done` for the next call that publishes `count` messages to this life of a queue."""
        asked = _Asked(count)
        waiting = self._asked.setdefault(queue, deque())
        waiting.append(asked)

        def answered(error: CurbstoneError | None, first_seq: int, covered: int) -> None:
            asked.left -= covered
            if asked in waiting and waiting[0] is not asked:  # what is kept here is looked at by `History.check`
                self._history.violations.append(Violation("a publish was answered before one in front of it"))
            if asked.left <= 0 and asked in waiting:
                waiting.remove(asked)
            if asked.left < 0:
                self._history.violations.append(Violation("a publish was answered twice"))
            done(error, first_seq, covered)

        return answered
