"""Takers of a single answer, and the book of leases. Pops are in `popping`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.pending import due
from curbstone.core.values import NOBODY, Lease

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

LEASE_BYTES_MAX = 4 * 1024 * 1024
"""One answer takes no more messages once theirs are so many bytes, headers and bodies."""


class Waiter:
    """Takes up to `count` deliveries once, now or within `wait_ms`; then it is gone.

    `give` is called once, unless it was given up before: with what is ready now, or nothing. Where there is no such
    group, nor may be, `refuse` is called instead.
    """

    weight = 1

    def __init__(
        self,
        queue: Queue,
        group: str,
        count: int,
        wait_ms: int,
        give: Callable[[list[Delivery]], None],
        refuse: Callable[[CurbstoneError], None],
    ) -> None:
        self.queue = queue
        self.group = group
        self.room = count
        self._give = give
        self._refuse = refuse
        self._waits = wait_ms > 0
        self._timer = queue.host.call_later(wait_ms, self.give_nothing) if self._waits else None

    def begin(self) -> Waiter:
        """Take part in the round robin of the group; return itself."""
        if self.queue.is_closed:
            self.queue.host.call_soon(self.give_nothing)
        elif refusal := self.queue.pending.undeclared.refusal([self.group]):
            self._end()
            self.queue.host.call_soon(partial(self._refuse, refusal))
        else:
            self.queue.join(self.group, self)
        return self

    @property
    def waits(self) -> bool:
        """Whether it waits on, now that nothing is ready."""
        return self._waits

    def give(self, deliveries: list[Delivery]) -> None:
        """Answer with deliveries; the queue calls this."""
        if not self.room:  # it was given up while its hand was dealt
            self.queue.put_back(self.group, deliveries)
            return
        self._end()
        self._give(deliveries)

    def give_nothing(self) -> None:
        """Answer that there is nothing, or nothing more."""
        if self.room:
            self.give([])

    def cancel(self) -> bool:
        """Give it up. False where it is too late: the answer has come, or comes for certain."""
        if not self.room:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.room = 0
        if self._timer is not None:
            self._timer.cancel()
        self.queue.leave(self)


class Gatherer(Waiter):
    """One that takes all it can get: until it has `count`, or LEASE_BYTES_MAX, or nothing more is ready.

    What must be read from disk first counts as ready; it is waited for.
    """

    def __init__(
        self,
        queue: Queue,
        group: str,
        count: int,
        wait_ms: int,
        give: Callable[[list[Delivery]], None],
        refuse: Callable[[CurbstoneError], None],
    ) -> None:
        super().__init__(queue, group, count, wait_ms, give, refuse)
        self._gathered: list[Delivery] = []
        self._bytes = 0

    @property
    def waits(self) -> bool:
        """See `Waiter.waits`: not if it has something already."""
        return self._waits and not self._gathered

    def give(self, deliveries: list[Delivery]) -> None:
        """Take deliveries, and answer when that is all."""
        if not self.room:
            self.queue.put_back(self.group, deliveries)
            return
        taken = 0
        for delivery in deliveries:
            if self._bytes >= LEASE_BYTES_MAX:
                break
            self._bytes += len(delivery.message.headers) + len(delivery.message.body)
            taken += 1
        self._gathered += deliveries[:taken]
        self.room -= taken
        if self.room and self._bytes < LEASE_BYTES_MAX:
            return
        self._finish()
        self.queue.put_back(self.group, deliveries[taken:])

    def give_nothing(self) -> None:
        """Answer with what there is."""
        if self.room:
            self._finish()

    def cancel(self) -> bool:
        """See `Waiter.cancel`; what was gathered goes back."""
        is_given_up = super().cancel()
        if is_given_up:
            self.queue.put_back(self.group, self._gathered)
        return is_given_up

    def _finish(self) -> None:
        self._end()
        self._give([] if self.queue.is_closed else self._gathered)


class Leases:
    """All leases of one queue, by seq and group; expired ones are given back by the queue."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], Lease] = {}
        self._by_token: dict[str, Lease] = {}
        self._due: list[tuple[int, str]] = []
        """A heap of when leases end. What was settled or extended since is stale, and swept out now and then."""

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def due_entries(self) -> int:
        """How many times are kept in memory, stale ones included."""
        return len(self._due)

    def ends(self) -> list[tuple[str, int]]:
        """Return the group of each, and when it ends."""
        return [(lease.group, lease.expires_ms) for lease in self._by_token.values()]

    def add(self, delivery: Delivery, group: str, expires_ms: int, owner: str = NOBODY) -> Lease:
        """Return a new lease of a delivery."""
        lease = Lease(delivery, group, expires_ms, owner)
        self._by_token[lease.token] = lease
        self._leases[group, delivery.message.seq] = lease
        self._note(lease)
        return lease

    def _note(self, lease: Lease) -> None:
        """Keep when a lease ends."""
        due.note(self._due, lease.expires_ms, lease.token, len(self._by_token), self._current)

    def _current(self) -> list[tuple[int, str]]:
        return [(lease.expires_ms, lease.token) for lease in self._by_token.values()]

    def take(self, token: str) -> Lease | None:
        """Remove and return a lease, or None if it has ended."""
        lease = self._by_token.pop(token, None)
        if lease is not None:
            del self._leases[lease.group, lease.delivery.message.seq]
        return lease

    def take_seq(self, group: str, seq: int) -> Lease | None:
        """Remove and return the lease of a message, if there is one."""
        lease = self._leases.get((group, seq))
        return self.take(lease.token) if lease else None

    def find(self, group: str, seq: int) -> Lease | None:
        """Return the lease of a message, if there is one."""
        return self._leases.get((group, seq))

    def take_own(self, token: str, owner: str) -> Lease | None:
        """Remove and return a lease, or None if it has ended or is another's."""
        lease = self._by_token.get(token)
        return self.take(token) if lease is not None and lease.owner == owner else None

    def extend(self, token: str, expires_ms: int, owner: str = NOBODY) -> bool:
        """Move a lease's end; False if it has ended or is another's."""
        lease = self._by_token.get(token)
        if lease is None or lease.owner != owner:
            return False
        if expires_ms != lease.expires_ms:
            lease.expires_ms = expires_ms
            self._note(lease)
        return True

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next lease may end."""
        return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int) -> list[Lease]:
        """Remove and return the leases whose time has run out."""
        ended = []
        while self._due and self._due[0][0] <= now_ms:
            expires_ms, token = heappop(self._due)
            lease = self._by_token.get(token)
            if lease is not None and lease.expires_ms == expires_ms:
                self.take(token)
                ended.append(lease)
        return ended

    def sweep(self) -> None:
        """Forget when leases would have ended that did so before."""
        due.sweep(self._due, len(self._by_token), self._current)

    def take_all(self) -> list[Lease]:
        """Remove and return all leases."""
        leases = list(self._by_token.values())
        self._by_token.clear()
        self._leases.clear()
        self._due.clear()
        return leases
