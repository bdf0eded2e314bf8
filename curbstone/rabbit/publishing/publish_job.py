"""Reports the outcomes of one call of `publish` in the order of its messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.values import Published


class NextTurn:
    """Calls functions in the next turn of the loop, all in one callback: one for each would cost twice as much."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._due: deque[Callable[[], None]] = deque()

    def call(self, fn: Callable[[], None]) -> None:
        """Call `fn` in the next turn, after the functions that were added before."""
        if not self._due:
            self._host.call_soon(self._run)
        self._due.append(fn)

    def _run(self) -> None:
        due, self._due = self._due, deque()
        try:
            while due:
                due.popleft()()
        finally:  # if one of them raises, the others are still called
            for fn in due:
                self._host.call_soon(fn)


class PublishJob:
    """Collects the outcomes of messages and reports them in order. Neighbours with the same outcome share a report."""

    __slots__ = ("_ends", "_first", "_is_due", "_left", "_next", "_on_done", "_on_stored", "_outcomes", "_next_turn")

    def __init__(
        self, next_turn: NextTurn, count: int, first: int, on_done: Published, on_stored: Callable[[int], None]
    ) -> None:
        """`first` is the number of the first of `count` messages. `on_stored(count)` is called before `on_done`."""
        self._next_turn = next_turn
        self._first = first
        self._on_done = on_done
        self._on_stored = on_stored
        self._outcomes: list[CurbstoneError | None] = [None] * count
        self._ends = bytearray(count)
        """For each message, 1 if its outcome is known."""
        self._left: dict[int, int] = {}
        """For each message with several copies, how many copies are pending."""
        self._next = 0
        self._is_due = False

    def several(self, place: int, copies: int) -> None:
        """Note that a message has several copies. It counts as stored when all of them are."""
        self._left[place] = copies

    def ended(self, place: int, error: CurbstoneError | None) -> None:
        """Take the outcome of a message, or of one of its copies."""
        if error is not None:
            self._outcomes[place] = error
        if self._left and place in self._left:
            self._left[place] -= 1
            if self._left[place]:
                return
        self._ends[place] = 1
        if not self._is_due:
            self._is_due = True
            self._next_turn.call(self._report)

    def _report(self) -> None:
        self._is_due = False
        ends, outcomes = self._ends, self._outcomes
        count = len(ends)
        while self._next < count and ends[self._next]:
            start = self._next
            error = outcomes[start]
            end = start + 1
            while end < count and ends[end] and _is_same(outcomes[end], error):
                end += 1
            self._next = end
            if error is None:
                self._on_stored(end - start)
                self._on_done(None, self._first + start, end - start)
            else:
                self._on_done(error, 0, end - start)


def _is_same(one: CurbstoneError | None, other: CurbstoneError | None) -> bool:
    """Return whether two messages have the same outcome."""
    return one is other or (one is not None and other is not None and str(one) == str(other))
