"""Leases: deliveries that return by themselves, settled by token in any connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.delivery.waiters import Gatherer, Leases, Waiter
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.message import Delivery
from curbstone.core.values import Answer, Outcome

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


class Leasing:
    """The leases of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._leases = Leases()

    def __len__(self) -> int:
        return len(self._leases)

    def ends(self) -> list[tuple[str, int]]:
        """Return the group of each lease, and when it ends."""
        return self._leases.ends()

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next lease may end."""
        return self._leases.next_due_ms

    @property
    def due_entries(self) -> int:
        """How many ends of leases are kept in memory."""
        return self._leases.due_entries

    def sweep(self) -> None:
        """Forget when leases would have ended that did so before."""
        self._leases.sweep()

    def end_due(self, now_ms: int) -> None:
        """Give back what has run out."""
        for lease in self._leases.take_due(now_ms):
            self._queue.settling.release(lease.group, [lease.delivery], error="the lease ran out")

    def end(self, group: str, seq: int) -> None:
        """Forget the lease of a message, if there is one."""
        self._leases.take_seq(group, seq)

    def end_all(self) -> None:
        """Forget all leases."""
        self._leases.take_all()

    def lease(self, count: int, duration_ms: int, on_done: Answer, *, group: str, wait_ms: int, owner: str) -> Waiter:
        """See `Queue.lease`."""

        def give(deliveries: list[Delivery]) -> None:
            expires_ms = self._queue.host.now_ms() + duration_ms
            leases = [self._leases.add(delivery, group, expires_ms, owner) for delivery in deliveries]
            self._queue.timers.arm()
            self._queue.host.call_soon(lambda: on_done(leases))

        return Gatherer(self._queue, group, count, wait_ms, give, on_done).begin()

    def give_back(self, tokens: list[str]) -> None:
        """End leases that nobody has seen: no try is counted."""
        for token in tokens:
            lease = self._leases.take(token)
            if lease is not None:
                self._queue.put_back(lease.group, [lease.delivery])

    def settle(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: Callable[[CurbstoneError | None, int, list[str]], None],
        *,
        delay_ms: int | None = None,
        error: str = "",
        owner: str,
    ) -> None:
        """Settle leases; `on_done(error, settled, stale tokens)` comes after the commit."""
        refusal = self._queue.refusal()
        if isinstance(refusal, NoSuchQueue) or self._queue.writer.failure:
            self._queue.host.call_soon(partial(on_done, refusal, 0, []))
            return
        refusal = None
        stale: list[str] = []
        left = 1
        settled = 0

        def done(failed: CurbstoneError | None) -> None:
            nonlocal left, refusal
            left -= 1
            refusal = refusal or failed
            if not left:
                on_done(refusal, 0 if refusal else settled, stale)

        for token in tokens:
            lease = self._leases.take_own(token, owner)
            if lease is None:
                stale.append(token)
                continue
            settled += 1
            if outcome is Outcome.ACK:
                self._queue.settling.settle_now(lease.group, [lease.delivery])
            elif outcome is Outcome.NACK:
                ((each_ms, deliveries),) = self._queue.settling.delayed([lease.delivery], delay_ms)
                self._queue.settling.release(lease.group, deliveries, delay_ms=each_ms, error=error)
            else:
                left += 1
                self._queue.settling.reject_now(lease.group, [lease.delivery], error, done)
        self._queue.writer.when_committed(done)

    def is_of_another(self, group: str, seq: int, owner: str) -> bool:
        """Return whether somebody else has a lease of a message."""
        lease = self._leases.find(group, seq)
        return lease is not None and lease.owner != owner

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Let leases end `duration_ms` from now; return the stale ones."""
        expires_ms = self._queue.host.now_ms() + duration_ms
        stale = [token for token in tokens if not self._leases.extend(token, expires_ms, owner)]
        self._queue.timers.arm()
        return stale
