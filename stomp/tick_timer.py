"""The timer of a session: it calls `tick`, which returns when to call it again."""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.host import Host, Timer

LATE_MS = 20
AGAIN_MS = 50


def _never(now_ms: int) -> int:
    return now_ms


class TickTimer:
    """Calls `tick(now)`, which returns the engine time at which to call it again.

    If the timer itself fires late, the process was stopped or busy, and input of the client may be unread. Then the
    timer waits a moment longer, so that `tick` does not consider the client silent.
    """

    def __init__(self, host: Host, tick: Callable[[int], int]) -> None:
        self._host = host
        self._tick = tick
        self._timer: Timer | None = None
        self._due_ms: int | None = None
        self._has_waited = False
        self._stopped = False

    def check(self) -> None:
        """Call `tick` now, and set the timer for the next call."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped:
            return
        now_ms = self._host.now_ms()
        if self._due_ms is not None and now_ms - self._due_ms > LATE_MS and not self._has_waited:
            self._has_waited = True
            self._timer = self._host.call_later(AGAIN_MS, self.check)
            return
        self._has_waited = False
        due_ms = self._due_ms = self._tick(now_ms)
        if not self._stopped:
            self._timer = self._host.call_later(due_ms - now_ms, self.check)

    def stop(self) -> None:
        """Stop the timer, and drop the reference to the session."""
        self._stopped = True
        self._tick = _never
        if self._timer is not None:
            self._timer.cancel()
