"""What a queue has to do in its next turn or at a given time. Its parts note it here, and `engine.queue` does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.host import Host, Timer


def _nothing() -> None:
    """Takes the place of a function that watches no more."""


class Wakeups:
    """See the module's docstring."""

    __slots__ = ("_alarm_ms", "_timer", "all_are_woken", "dirty", "has_changed", "host", "is_due", "watchers", "woken")

    def __init__(self, host: Host, dirty: Callable[[], None]) -> None:
        self.host = host
        self.dirty = dirty
        """Has the queue's turn called at the end of this turn of the loop."""
        self.woken: dict[str, None] = {}
        """The groups in which something may be handed out."""
        self.all_are_woken = False
        self.watchers: list[Callable[[], None]] = []
        """Functions to call when the counts have changed."""
        self.has_changed = False
        """Whether the counts may have changed since the watchers were last called."""
        self.is_due = False
        """Whether the time of `at` has come."""
        self._alarm_ms: int | None = None
        self._timer: Timer | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing that is noted here is left to do in the next turn."""
        return not (self.woken or self.all_are_woken or self.has_changed or self.is_due)

    def wake(self, group: str) -> None:
        """Have ready messages of a group handed out at the end of this turn."""
        self.woken[group] = None
        self.dirty()

    def wake_all(self) -> None:
        """Have ready messages of all groups handed out, including those that waited for a read."""
        self.all_are_woken = True
        self.dirty()

    def changed(self) -> None:
        """Have the watchers called, because the counts may have changed."""
        if self.watchers and not self.has_changed:
            self.has_changed = True
            self.dirty()

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after each turn in which the counts changed; return a function that ends this."""
        self.watchers.append(fn)

        def unwatch() -> None:
            nonlocal fn
            if fn in self.watchers:
                self.watchers.remove(fn)
            fn = _nothing  # the owner of `fn` often keeps `unwatch`; so the two do not keep each other in memory

        return unwatch

    def at(self, due_ms: int) -> None:
        """Have a turn at that engine time, to deal with what is due by then."""
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
            self.dirty()
