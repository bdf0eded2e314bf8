"""Holds back the confirms of a server with a standby until the standby has acknowledged them.

::

    ALONE     everything is confirmed at once. A complete standby attaches: JOINING
    JOINING   what the standby acknowledges is confirmed. Once it has all that existed when it attached: SYNC.
              Connection lost: WAITING if a standby may assume that it is in sync, else ALONE
    SYNC      what the standby acknowledges is confirmed. Connection lost: WAITING
    WAITING   the same, while the standby is missing or incomplete. It is complete: JOINING. After the patience: ALONE

A standby may assume that it is in sync from when it was in sync until the server decides to continue alone. Before the
server confirms anything alone, it records this durably; the record is removed, durably, before a standby is in sync
again. Without the record a server starts in WAITING, because an earlier process may have had a standby in sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from curbstone.standby.frames import InSync, Kind
from curbstone.standby.stream import Stream

ACK_TIMEOUT_MS = 3000
"""A standby that acknowledges nothing for so long counts as lost."""


class BarrierState(Enum):
    """See the module's docstring."""

    ALONE = "alone"
    JOINING = "joining"
    SYNC = "sync"
    WAITING = "waiting"


class StandbyBarrier:
    """Implements `core.host.ConfirmBarrier`. All methods may be called on any thread."""

    def __init__(
        self,
        stream: Stream,
        now_ms: Callable[[], int],
        wake: Callable[[], object],
        *,
        patience_ms: int | None,
        syncs_always: bool,
        is_alone: bool = False,
        record_alone: Callable[[bool], None] = lambda _is_alone: None,
        may_continue_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """`wake` is called when more is allowed.

        `syncs_always`: whether the server confirms nothing before it is on its own disk.
        After `patience_ms` of WAITING the server continues alone; with None it never does. `is_alone` is what
        `record_alone` has recorded last, durably. It blocks, and may raise OSError: then the state does not change.
        `may_continue_alone` is called before that, repeatedly until it returns True.
        """
        self.state = BarrierState.ALONE if is_alone and patience_ms is not None else BarrierState.WAITING
        self.acknowledged = 0
        """The last position that the standby has acknowledged."""
        self._stream = stream
        self._now_ms = now_ms
        self._wake_host = wake
        self._patience_ms = patience_ms
        self._in_sync = InSync.ON_DISK if syncs_always else InSync.IN_MEMORY
        self.may_be_in_sync = not is_alone
        """Whether a standby may assume that it is in sync. One that attaches is told if it may not."""
        self._record_alone = record_alone
        self._may_continue_alone = may_continue_alone
        self._mark = 0
        """In JOINING: the end of the stream when the standby attached."""
        self._acknowledged_ms = self._since_ms = now_ms()
        self._lock = threading.RLock()
        stream.activate()

    # --- confirms

    def begin(self) -> None:
        self._stream.reset_required_position()

    def end(self) -> int:
        return self._stream.required_position

    def allows(self, mark: int) -> bool:
        return mark <= self.acknowledged or self.state is BarrierState.ALONE

    @property
    def is_in_sync(self) -> bool:
        """Whether every confirm waits for a standby that has everything confirmed before."""
        return self.state is BarrierState.SYNC

    # --- the standby

    def standby_attached(self) -> None:
        """A complete standby is connected."""
        with self._stream.lock, self._lock:
            self._acknowledged_ms = self._now_ms()
            if self.state in (BarrierState.ALONE, BarrierState.WAITING):
                self.state = BarrierState.JOINING
                self._mark = self._stream.end

    def acknowledge(self, durable: int) -> None:
        """The standby has everything up to a position."""
        with self._lock:
            self._acknowledged_ms = self._now_ms()
            self.acknowledged = max(self.acknowledged, durable)
        if self.state is BarrierState.JOINING:
            with self._stream.lock, self._lock:
                if self.state is BarrierState.JOINING and durable >= self._mark:
                    self._record_alone(False)
                    self.state = BarrierState.SYNC
                    self.may_be_in_sync = True
                    self._stream.add(Kind.STATE, a=self._patience_ms or 0, flag=self._in_sync, is_urgent=True)
        self._wake_host()

    def standby_lost(self) -> None:
        """The connection to the standby is lost."""
        with self._lock:
            if self.state is BarrierState.JOINING and not self.may_be_in_sync and self._patience_ms is not None:
                self.state = BarrierState.ALONE
            elif self.state in (BarrierState.JOINING, BarrierState.SYNC):
                self.state = BarrierState.WAITING
                self._since_ms = self._now_ms()
        self._wake_host()

    def tick(self) -> bool:
        """Check the timeouts. Return False if the connection to the standby has to be closed."""
        with self._stream.lock, self._lock:
            now_ms = self._now_ms()
            if self.state in (BarrierState.JOINING, BarrierState.SYNC):
                return now_ms - self._acknowledged_ms <= ACK_TIMEOUT_MS
            is_over = self._patience_ms is not None and now_ms - self._since_ms >= self._patience_ms
            if self.state is not BarrierState.WAITING or not is_over or not self._may_continue_alone():
                return True
            self._record_alone(True)
            self._stream.add(Kind.STATE, flag=InSync.NO, is_urgent=True)
            self.may_be_in_sync = False
            self.state = BarrierState.ALONE
        self._wake_host()
        return True
