"""Leases: deliveries that are requeued when their time ends, and that any connection can settle by token."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from heapq import heappop

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.pull import Pull
from curbstone.core.engine.index import due
from curbstone.core.errors import NoSuchQueue
from curbstone.core.message import Delivery
from curbstone.core.values import NOBODY, UNKNOWN, UNNAMED, AllDone, Answer, ClientInfo, Lease, LeasesSettled, Outcome

ENDED_AT_ONCE = 512
"""How many leases of a queue end in one turn, if many expire together."""


class _Held(Lease):
    __slots__ = ("_leases",)

    def __init__(
        self, leases: Leases, delivery: Delivery, group: str, expires_ms: int, owner: str, client_info: ClientInfo
    ) -> None:
        super().__init__(delivery, group, expires_ms, owner, client_info)
        self._leases = leases

    def lose(self, _seq: int) -> None:
        self._leases.end(self)


class Leases:
    """The leases of one queue, by token."""

    __slots__ = ("_by_token", "_dispatcher", "_due", "_parts", "_state")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._parts = dispatcher.parts
        self._state = dispatcher.parts.state
        self._by_token: dict[str, Lease] = {}
        self._due: list[tuple[int, str]] = []
        """A heap of (expires_ms, token). Entries of leases that were settled or extended since are stale; sweeps
        remove them."""

    def __len__(self) -> int:
        return len(self._by_token)

    def all(self) -> Collection[Lease]:
        return self._by_token.values()

    # --- how they begin and end

    def lease(
        self,
        count: int,
        duration_ms: int,
        on_done: Answer,
        *,
        group: str = UNNAMED,
        wait_ms: int = 0,
        owner: str = NOBODY,
        client_info: ClientInfo = UNKNOWN,
    ) -> Pull:
        """Lease up to `count` messages, and no more once they have LEASE_BYTES_MAX bytes together."""

        def give(deliveries: list[Delivery]) -> None:
            now_ms = self._state.host.now_ms()
            in_flight = self._parts.index.group(group).in_flight
            leases = [_Held(self, delivery, group, now_ms + duration_ms, owner, client_info) for delivery in deliveries]
            for lease in leases:
                lease.delivery.handed_ms = now_ms
                in_flight[lease.delivery.message.seq] = lease
                self._by_token[lease.token] = lease
                self._state.shared.leased.add(lease, self._state.name)
                self._note(lease)
            self._state.host.call_soon(lambda: on_done([*leases]))

        return Pull(self._dispatcher, group, count, wait_ms, give, on_done, client_info).begin()

    def end(self, lease: Lease) -> None:
        """Forget a lease; nothing happens if it has ended already."""
        if self._by_token.pop(lease.token, None) is not None:
            self._state.shared.leased.drop(lease)

    def _own(self, token: str, owner: str) -> Lease | None:
        """Return a lease, or None if it has ended or has another owner."""
        lease = self._by_token.get(token)
        return lease if lease is not None and lease.owner == owner else None

    def settle(
        self,
        tokens: list[str],
        outcome: Outcome,
        on_done: LeasesSettled,
        *,
        delay_ms: int | None = None,
        error: str = "",
        owner: str = NOBODY,
    ) -> None:
        """Settle leases; `on_done(error, settled, stale tokens)` is called after the commit."""
        refusal = self._state.refusal()
        if isinstance(refusal, NoSuchQueue) or self._state.failure:
            self._state.host.call_soon(partial(on_done, refusal, 0, []))
            return
        stale: list[str] = []
        settled = 0
        done = AllDone(lambda failed: on_done(failed, 0 if failed else settled, stale))
        requeue = self._dispatcher.requeue
        for token in tokens:
            lease = self._own(token, owner)
            if lease is None:
                stale.append(token)
                continue
            self.end(lease)
            settled += 1
            if outcome is Outcome.ACK:
                self._dispatcher.acks.settle_now(lease.group, [lease.delivery])
            elif outcome is Outcome.NACK:
                ((each_ms, deliveries),) = requeue.delayed([lease.delivery], delay_ms)
                requeue.release(lease.group, deliveries, delay_ms=each_ms, error=error)
            else:
                done.add()
                requeue.reject_now(lease.group, [lease.delivery], error, done)
        self._parts.write_queue.when_committed(done)

    def give_back(self, leases: list[Lease]) -> None:
        for given in leases:
            lease = self._by_token.get(given.token)
            if lease is not None:
                self.end(lease)
                self._dispatcher.acks.put_back(lease.group, [lease.delivery])

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Let leases end `duration_ms` from now; return the tokens of stale ones."""
        expires_ms = self._state.host.now_ms() + duration_ms
        stale: list[str] = []
        for token in tokens:
            lease = self._own(token, owner)
            if lease is None:
                stale.append(token)
            elif expires_ms != lease.expires_ms:
                lease.expires_ms = expires_ms
                self._note(lease)
        return stale

    def end_all(self) -> None:
        for lease in list(self._by_token.values()):
            self.end(lease)
        self._due.clear()

    # --- when they end

    def _note(self, lease: Lease) -> None:
        due.note(self._due, lease.expires_ms, lease.token, len(self._by_token), self._current)
        self._parts.wakeups.at(lease.expires_ms)

    def _current(self) -> list[tuple[int, str]]:
        return [(lease.expires_ms, lease.token) for lease in self._by_token.values()]

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def end_due(self, now_ms: int) -> None:
        """Requeue messages whose leases have expired; if there are many, some of them."""
        for _ in range(ENDED_AT_ONCE):
            if not self._due or self._due[0][0] > now_ms:
                break
            expires_ms, token = heappop(self._due)
            lease = self._by_token.get(token)
            if lease is not None and lease.expires_ms == expires_ms:
                self.end(lease)
                self._dispatcher.requeue.release(lease.group, [lease.delivery], delay_ms=0, error="the lease ran out")

    def sweep(self) -> None:
        due.sweep(self._due, len(self._by_token), self._current)
