"""Time to live: finds the messages that have expired, and settles them."""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING

from curbstone.core.log.format import Reason
from curbstone.core.message import Delivery, Message
from curbstone.core.pending import due
from curbstone.core.pending.group import Group
from curbstone.core.pending.runs import Run

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

READ_AGAIN_MS = 100


class Expiry:
    """Knows for each run when the first of its messages expires."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._due: list[tuple[int, int]] = []
        self.has_any = False
        """Whether any message of the queue ever had an expiry."""

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next message may expire."""
        return self._due[0][0] if self._due else None

    def expire_due(self, now_ms: int) -> None:
        """Settle what has expired."""
        while self._due and self._due[0][0] <= now_ms:
            _, seq = heappop(self._due)
            self._expire_at(seq)

    def note(self, run: Run, expires_ms: int) -> None:
        """Remember that some message of a run expires then."""
        self.has_any = True
        if not run.expires_ms or expires_ms < run.expires_ms:
            run.expires_ms = expires_ms
            due.note(self._due, expires_ms, run.first, len(self._queue.pending.runs), self._expiries)

    def _expiries(self) -> list[tuple[int, int]]:
        return [(run.expires_ms, run.first) for run in self._queue.pending.runs if run.expires_ms]

    def sweep(self) -> None:
        """Forget when messages would have expired that are settled."""
        due.sweep(self._due, len(self._queue.pending.runs), self._expiries)

    @property
    def due_entries(self) -> int:
        """How many times are kept in memory, stale ones included."""
        return len(self._due)

    def _expire_at(self, seq: int) -> None:
        run = self._queue.pending.runs.at_or_after(seq)
        if run is None or not run.expires_ms:
            return
        if run.messages is None:
            self._queue.pending.reader.load(run, lambda: self._expire_run(run))
        else:
            self._expire_run(run)

    def _expire_run(self, run: Run) -> None:
        if run.messages is None:
            if run.live():
                self._queue.host.call_later(READ_AGAIN_MS, lambda: self._expire_at(run.first))
            return
        now_ms = self._queue.host.now_ms()
        next_ms = 0
        for message in [m for m in run.messages if m is not None and m.expires_ms]:
            if message.expires_ms > now_ms:
                next_ms = min(next_ms or message.expires_ms, message.expires_ms)
                continue
            for group in self._queue.pending.groups.values():
                if run.pending(group.name) >> (message.seq - run.first) & 1 and message.seq not in group.wip:
                    self.expire(group, message)
        run.expires_ms = 0
        if next_ms and run.live():
            self.note(run, next_ms)
        self._queue.timers.arm()

    def expire(self, group: Group, message: Message) -> None:
        """Settle an expired message that nobody holds."""
        self._queue.stats.expired += 1
        delivery = Delivery(message, group.tries_of(message.seq), 0)
        group.seize(message.seq)
        if self._queue.options.dead_letter:
            self._queue.deaths.bury(group, delivery, Reason.EXPIRE, delivery.tries, "")
        else:
            self._queue.settling.settle_now(group.name, [delivery], Reason.EXPIRE)
