"""Leases on a consuming WebSocket (`?lease=seconds`).

Each delivery lasts for that time since it was sent or last extended; then it is requeued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curbstone.core.host import Host, Timer

_STALE_MIN = 1_000
"""How many obsolete entries are kept before the heap is rebuilt."""


class SocketLeases:
    """The leases of one connection, by the numbers of its deliveries. Call `leave` when the connection is over."""

    def __init__(self, host: Host, lease_ms: int) -> None:
        self._host = host
        self._lease_ms = lease_ms
        self._ends: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """(end, number) of each delivery; also obsolete entries of those that were settled or extended since."""
        self._timer: Timer | None = None
        self._timer_ms = 0

    def begin(self, ended: Callable[[list[int]], None]) -> None:
        """Start; `ended` is called with the numbers of deliveries whose time has run out."""
        self._ended = ended

    def add(self, numbers: Iterable[int]) -> None:
        """Start the leases of deliveries that are sent now."""
        end_ms = self._host.now_ms() + self._lease_ms
        for number in numbers:
            self._note(number, end_ms)

    def extend(self, number: int, duration_ms: int) -> None:
        """Make a delivery last `duration_ms` from now."""
        self._note(number, self._host.now_ms() + duration_ms)

    def drop(self, number: int) -> None:
        """Forget a delivery that was settled."""
        self._ends.pop(number, None)

    def leave(self) -> None:
        """Stop the timer and forget everything: the connection is over."""
        self._ends.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, number: int, end_ms: int) -> None:
        self._ends[number] = end_ms
        if len(self._heap) > 2 * len(self._ends) + _STALE_MIN:
            self._heap = [(end, each) for each, end in self._ends.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (end_ms, number))
        self._arm()

    def _arm(self) -> None:
        """Set the timer for the first end."""
        first_ms = self._heap[0][0]
        if self._timer is not None and self._timer_ms <= first_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = first_ms
        self._timer = self._host.call_later(first_ms - self._host.now_ms(), self._check)

    def _check(self) -> None:
        self._timer = None
        now_ms = self._host.now_ms()
        ended = []
        while self._heap and self._heap[0][0] <= now_ms:
            end_ms, number = heappop(self._heap)
            if self._ends.get(number) == end_ms:
                del self._ends[number]
                ended.append(number)
        if self._heap:
            self._arm()
        if ended:
            self._ended(ended)
