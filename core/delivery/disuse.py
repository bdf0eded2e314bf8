"""A queue that goes when it is unused: nobody consumed from it, leased, popped or waited for so long.

Publishing is no use of it: what is published to a queue that nobody reads is what is to go. The time runs anew when the
server starts. One that goes at once, when its last consumer has left, is given a minute for the first to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import NoSuchQueue

if TYPE_CHECKING:
    from curbstone.core.host import Timer
    from curbstone.core.queue import Queue

FIRST_MS = 60_000


class Disuse:
    """Watches one queue that has the option `unused`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._timer: Timer | None = None
        self._delivered = 0
        self._was_used = False

    def look(self) -> None:
        """Somebody may have come or gone, or the option may have changed."""
        queue = self._queue
        unused = queue.options.unused
        was_served = queue.stats.delivered != self._delivered
        self._delivered = queue.stats.delivered
        self._was_used = self._was_used or was_served or queue.is_used
        if unused is None or queue.is_used:
            self._stop()
        elif self._timer is None or was_served:
            self._stop()
            delay_ms = round(unused * 1000) if unused or self._was_used else FIRST_MS
            self._timer = queue.host.call_later(delay_ms, self._due)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        queue = self._queue
        unused = queue.options.unused
        if unused is not None and not queue.is_closed and not queue.is_used:
            queue.broker.end(queue, NoSuchQueue(f"queue {queue.name} is gone: it was unused for {unused:g} s"))
