"""When queues have their turns, and what a queue has to do in its next one.

The parts of a queue note in its `Wakeups` what is to be done, and `engine.queue` does it at the end of the turn of the
loop, so that all that was gathered for a queue is one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from curbstone.core.engine.syncer import Syncer
from curbstone.core.host import Host, Timer
from curbstone.core.values import ignore

TURNS_AT_ONCE = 16
"""After so many queues the time is looked at, so that the loop's sockets do not wait for a thousand queues."""
TURN_US_MAX = 50_000
"""After this time the remaining queues have their turns when the loop has polled its sockets."""


Turn = Callable[[], object]
"""The turn of a queue. It never raises."""


class Turns:
    """Gives the queues of a server their turns."""

    def __init__(self, host: Host, syncer: Syncer) -> None:
        self._host = host
        self._syncer = syncer
        self._scheduled: dict[Turn, None] = {}  # in order, so that a simulated run can be repeated
        self._is_set = False

    def __len__(self) -> int:
        return len(self._scheduled)

    def add(self, turn: Turn) -> None:
        """Have a queue's turn called: once, however often it is added."""
        self._scheduled[turn] = None
        if not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_set = False
        now, self._scheduled = self._scheduled, {}
        if len(now) == 1:
            for turn in now:
                turn()
        else:
            self._turn_of_many(now)
        if self._scheduled and not self._is_set:
            self._is_set = True
            self._host.call_soon(self._turn)

    def _turn_of_many(self, now: dict[Turn, None]) -> None:
        end_us = self._host.now_us() + TURN_US_MAX
        self._syncer.begin_turn()
        for had, turn in enumerate(now, 1):
            turn()
            if had % TURNS_AT_ONCE == 0 and had < len(now) and self._host.now_us() >= end_us:
                self._scheduled = dict.fromkeys(islice(now, had, None)) | self._scheduled
                break
        self._syncer.end_turn()


class Wakeups:
    """What one queue has to do in its next turn, or at a given time."""

    __slots__ = (
        "_alarm_ms", "_has_ended", "_timer", "all_are_woken", "has_changed", "host", "is_due", "schedule", "turn",
        "watchers", "woken",
    )  # fmt: skip

    def __init__(self, host: Host, turn: Turn, add: Callable[[Turn], None]) -> None:
        """`add` has a turn called at the end of the present turn of the loop."""
        self.host = host
        self.turn = turn
        """The turn of the queue."""
        self.schedule = partial(add, turn)
        """Has the queue's turn called at the end of this turn of the loop, once."""
        self.woken: dict[str, None] = {}
        """The groups in which something may be ready to deliver."""
        self.all_are_woken = False
        self.watchers: list[Callable[[], None]] = []
        """Functions to call when the counts have changed."""
        self.has_changed = False
        """Whether the counts may have changed since the watchers were last called."""
        self.is_due = False
        """Whether the time of `at` has been reached."""
        self._alarm_ms: int | None = None
        self._timer: Timer | None = None
        self._has_ended = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing that is noted here is left to do in the next turn."""
        return not (self.woken or self.all_are_woken or self.has_changed or self.is_due)

    def wake(self, group: str) -> None:
        """Have ready messages of a group delivered at the end of this turn."""
        self.woken[group] = None
        self.schedule()

    def wake_all(self) -> None:
        """Have ready messages of all groups delivered, including those that waited for a read."""
        self.all_are_woken = True
        self.schedule()

    def changed(self) -> None:
        """Have the watchers called, because the counts may have changed."""
        if self.watchers and not self.has_changed:
            self.has_changed = True
            self.schedule()

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after each turn in which the counts changed; return a function that ends this."""
        self.watchers.append(fn)

        def unwatch() -> None:
            nonlocal fn
            if fn in self.watchers:
                self.watchers.remove(fn)
            fn = ignore  # the owner of `fn` often keeps `unwatch`; so the two do not keep each other in memory

        return unwatch

    def end(self) -> None:
        """End the timer, which would keep the queue in memory."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def at(self, due_ms: int) -> None:
        """Have a turn at that engine time, to deal with what is due by then."""
        if self._has_ended:
            return
        if self._alarm_ms is None or due_ms < self._alarm_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._alarm_ms = due_ms
            self._timer = self.host.call_later(max(due_ms - self.host.now_ms(), 0), partial(self._on_time, due_ms))

    def _on_time(self, due_ms: int) -> None:
        self._alarm_ms = self._timer = None
        if self.host.now_ms() < due_ms:  # the timer was early
            self.at(due_ms)
        else:
            self.is_due = True
            self.schedule()
