"""One call of `publish`: which of its messages are stored, told as prefixes of its list."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.values import Published


class Soon:
    """Calls what is due in the next turn: all of it in one, for a turn of its own costs as much as what it does."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._due: deque[Callable[[], None]] = deque()

    def call(self, fn: Callable[[], None]) -> None:
        """Call `fn` in the next turn, behind what is due already."""
        if not self._due:
            self._host.call_soon(self._run)
        self._due.append(fn)

    def _run(self) -> None:
        due, self._due = self._due, deque()
        try:
            while due:
                due.popleft()()
        finally:  # what one of them raises ends none of the others
            for fn in due:
                self._host.call_soon(fn)


class Job:
    """Gathers outcomes, and tells them in order: neighbours of which the same is to be said together."""

    __slots__ = ("_ends", "_first", "_is_due", "_left", "_next", "_on_done", "_on_stored", "_outcomes", "_soon")

    def __init__(
        self, soon: Soon, count: int, first: int, on_done: Published, on_stored: Callable[[int], None]
    ) -> None:
        """`first`: the number of the first message, the others follow; `on_stored(count)` comes beside `on_done`."""
        self._soon = soon
        self._first = first
        self._on_done = on_done
        self._on_stored = on_stored
        self._outcomes: list[CurbstoneError | None] = [None] * count
        self._ends = bytearray(count)
        """1 for each message whose outcome is known."""
        self._left: dict[int, int] = {}
        """How many copies are under way of those that have several."""
        self._next = 0
        self._is_due = False

    def several(self, place: int, copies: int) -> None:
        """This message is published so many times; it is stored when all are."""
        self._left[place] = copies

    def ended(self, place: int, error: CurbstoneError | None) -> None:
        """The outcome of one message, or of a copy."""
        if error is not None:
            self._outcomes[place] = error
        if self._left and place in self._left:
            self._left[place] -= 1
            if self._left[place]:
                return
        self._ends[place] = 1
        if not self._is_due:
            self._is_due = True
            self._soon.call(self._tell)

    def _tell(self) -> None:
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
    """Whether the same is to be said of two messages."""
    return one is other or (one is not None and other is not None and str(one) == str(other))
