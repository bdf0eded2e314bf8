"""What a queue does when its time has come: delays, leases, expiry, and a little housekeeping."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

IDLE_MS = 1000


class Timers:
    """The timers of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._armed_ms: int | None = None
        self._idle_set = False

    def arm(self) -> None:
        """Set the timer for whatever is due next."""
        queue = self._queue
        dues = [group.next_due_ms for group in queue.pending.groups.values()]
        dues += [queue.leasing.next_due_ms, queue.expiry.next_due_ms]
        due_ms = min((due for due in dues if due is not None), default=None)
        if due_ms is not None and (self._armed_ms is None or due_ms < self._armed_ms):
            self._armed_ms = due_ms
            queue.host.call_later(max(due_ms - queue.host.now_ms(), 0), partial(self._on_time, due_ms))

    def _on_time(self, armed_ms: int) -> None:
        queue = self._queue
        if self._armed_ms == armed_ms:
            self._armed_ms = None
        now_ms = queue.host.now_ms()
        if queue.is_closed:
            return
        if now_ms < armed_ms:
            self.arm()
            return
        for name, group in queue.pending.groups.items():
            if group.mature(now_ms):
                queue.wake(name)
                queue.changed()
                queue.deaths.try_again()
        queue.leasing.end_due(now_ms)
        queue.expiry.expire_due(now_ms)
        self.arm()

    def housekeeping(self) -> None:
        """Nothing is left to write: see to it that the queue shrinks if it is empty, some time later."""
        queue = self._queue
        if not self._idle_set and queue.is_idle:
            self._idle_set = True
            queue.host.call_later(IDLE_MS, self._trim)

    def _trim(self) -> None:
        self._idle_set = False
        queue = self._queue
        if not queue.is_closed and queue.is_idle:
            self._sweep()
        if not queue.is_closed and queue.is_idle and queue.cleaner.trim():
            queue.dirty()

    def _sweep(self) -> None:
        """Forget what there is no use for in an empty queue."""
        queue = self._queue
        queue.pending.undeclared.sweep()
        for group in queue.pending.groups.values():
            group.sweep()
        queue.expiry.sweep()
        queue.leasing.sweep()
