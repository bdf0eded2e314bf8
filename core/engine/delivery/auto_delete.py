"""Deletes a queue that no client has consumed from, leased, popped or waited in for the time in its option `unused`.

A pop or lease that finds nothing counts as use, because a client that polls reads the queue. Publishing does not: the
option is for queues that clients publish to but no longer read. The time starts again when the server starts. If the
queue is to be deleted as soon as its last consumer leaves, it waits a minute for the first one.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.leases import Leases
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.host import Timer

FIRST_MS = 60_000


class AutoDelete:
    """Watches one queue while it has the option `unused`."""

    __slots__ = (
        "_attempts_seen", "_delivered", "_dispatcher", "_end", "_leases", "_state", "_timer", "_unwatch", "_was_used",
    )  # fmt: skip

    def __init__(self, dispatcher: Dispatcher, leases: Leases, end: Callable[[CurbstoneError], None]) -> None:
        """`end` deletes the queue."""
        self._dispatcher = dispatcher
        self._leases = leases
        self._state = dispatcher.parts.state
        self._attempts_seen = 0
        self._end = end
        self._unwatch: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._delivered = 0
        self._was_used = False

    def option_changed(self) -> None:
        """Apply the option, which may have been set, changed or removed."""
        if self._unwatch is None and self._state.options.unused is not None:
            self._unwatch = self._dispatcher.parts.wakeups.watch(self._look)
            self._dispatcher.parts.wakeups.changed()
        elif self._unwatch is not None:
            self._look()

    @property
    def _is_used(self) -> bool:
        """Whether a client consumes from the queue, waits for a message, or has one in flight."""
        return bool(self._dispatcher.attached or self._leases)

    def _look(self) -> None:
        """Start or stop the timer: a consumer may have been added or removed, or the option may have changed."""
        state = self._state
        unused = state.options.unused
        is_used = self._is_used
        attempts, delivered = self._dispatcher.attempts, state.stats.delivered
        was_polled = attempts != self._attempts_seen
        # A consumer may have left before this queue was open, and so before its first look.
        self._was_used |= is_used or self._dispatcher.had_consumer or delivered != self._delivered
        self._attempts_seen, self._delivered = attempts, delivered
        if unused is None or is_used or state.is_closed:
            self._stop()
        elif self._timer is None or was_polled:
            self._stop()
            delay_ms = round(unused * 1000) if unused or self._was_used else FIRST_MS
            self._timer = state.host.call_later(delay_ms, self._due)
        if unused is None and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        state = self._state
        unused = state.options.unused
        if unused is not None and not state.is_closed and not self._is_used:
            self._end(NoSuchQueue(f"queue {state.name} is gone: it was unused for {unused:g} s"))
