"""Leases: deliveries that return by themselves, settled by token in any connection."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from curbstone.core.engine.delivery.acks import Acks
from curbstone.core.engine.delivery.leases import NO_LEASES, Leases
from curbstone.core.engine.delivery.pull import Counter, Waiter
from curbstone.core.engine.delivery.requeue import Requeue
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.engine.write_queue import Outbox
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.message import Delivery
from curbstone.core.values import Answer, Lease, Outcome, Who


class Leasing:
    """The leases of one queue."""

    __slots__ = ("_acks", "_agenda", "_counter", "_leases", "_outbox", "_requeue", "_state")

    def __init__(
        self,
        state: QueueState,
        agenda: Agenda,
        outbox: Outbox,
        acks: Acks,
        requeue: Requeue,
        counter: Counter,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._acks = acks
        self._requeue = requeue
        self._counter = counter
        self._agenda = agenda
        self._leases = NO_LEASES

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> Collection[Lease]:
        """Return all leases."""
        return self._leases.all()

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next lease may end."""
        return self._leases.next_due_ms

    @property
    def due_entries(self) -> int:
        """How many ends of leases are kept in memory, stale ones included."""
        return self._leases.due_entries

    def sweep(self) -> None:
        """Drop stale ends of leases from memory."""
        self._leases.sweep()

    def end_due(self, now_ms: int) -> None:
        """Give back the messages whose leases have run out."""
        for lease in self._leases.take_due(now_ms):
            self._requeue.release(lease.group, [lease.delivery], error="the lease ran out")

    def end_deliveries(self, group: str, seqs: list[int]) -> None:
        """Forget the leases of messages, if there are any."""
        for seq in seqs:
            self._leases.take_seq(group, seq)

    def end_all(self) -> None:
        """Forget all leases."""
        self._leases.take_all()

    def lease(
        self, count: int, duration_ms: int, on_done: Answer, *, group: str, wait_ms: int, owner: str, who: Who
    ) -> Waiter:
        """See `Queue.lease`."""

        def give(deliveries: list[Delivery]) -> None:
            if self._leases is NO_LEASES:
                self._leases = Leases(self._agenda.at, self._state.shared.leased, self._state.name)
            now_ms = self._state.host.now_ms()
            expires_ms = now_ms + duration_ms
            for delivery in deliveries:
                delivery.handed_ms = now_ms
            leases = [self._leases.add(delivery, group, expires_ms, owner, who) for delivery in deliveries]
            self._state.host.call_soon(lambda: on_done(leases))

        return Waiter(self._counter, group, count, wait_ms, give, on_done, who).begin()

    def give_back(self, tokens: list[str]) -> None:
        """End leases that nobody has seen: no try is counted."""
        for token in tokens:
            lease = self._leases.take(token)
            if lease is not None:
                self._acks.put_back(lease.group, [lease.delivery])

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
        refusal = self._state.refusal()
        if isinstance(refusal, NoSuchQueue) or self._state.failure:
            self._state.host.call_soon(partial(on_done, refusal, 0, []))
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
                self._acks.settle_now(lease.group, [lease.delivery])
            elif outcome is Outcome.NACK:
                ((each_ms, deliveries),) = self._requeue.delayed([lease.delivery], delay_ms)
                self._requeue.release(lease.group, deliveries, delay_ms=each_ms, error=error)
            else:
                left += 1
                self._requeue.reject_now(lease.group, [lease.delivery], error, done)
        self._outbox.when_committed(done)

    def is_of_another(self, group: str, seq: int, owner: str) -> bool:
        """Return whether somebody else has a lease of a message."""
        lease = self._leases.find(group, seq)
        return lease is not None and lease.owner != owner

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Let leases end `duration_ms` from now; return the stale ones."""
        expires_ms = self._state.host.now_ms() + duration_ms
        stale = [token for token in tokens if not self._leases.extend(token, expires_ms, owner)]
        return stale
