"""Takers of a single answer: a pop, and a lease; and the book of leases."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


class Lease:
    """A delivery that returns by itself when its time runs out."""

    __slots__ = ("delivery", "expires_ms", "group", "token")

    def __init__(self, delivery: Delivery, group: str, expires_ms: int) -> None:
        self.delivery = delivery
        self.group = group
        self.expires_ms = expires_ms
        """Engine time when it returns."""
        self.token = f"{delivery.message.seq}.{secrets.token_urlsafe(16)}"
        """Opaque and unguessable; what settles it."""


class Waiter:
    """Takes up to `count` deliveries once, now or within `wait_ms`; then it is gone."""

    weight = 1

    def __init__(
        self, queue: Queue, group: str, count: int, wait_ms: int, give: Callable[[list[Delivery]], None]
    ) -> None:
        self.queue = queue
        self.group = group
        self.room = count
        self.waits = wait_ms > 0
        self._give = give
        self._timer = queue.host.call_later(wait_ms, self.give_nothing) if self.waits else None

    @classmethod
    def start(
        cls, queue: Queue, group: str, count: int, wait_ms: int, give: Callable[[list[Delivery]], None]
    ) -> Waiter:
        """Return a waiter that takes part in the round robin of its group."""
        waiter = cls(queue, group, count, wait_ms, give)
        queue.join(group, waiter)
        return waiter

    def give(self, deliveries: list[Delivery]) -> None:
        """Answer with deliveries; the queue calls this."""
        self._end()
        self._give(deliveries)

    def give_nothing(self) -> None:
        """Answer that there is nothing."""
        if self.room:
            self.give([])

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._end()

    def _end(self) -> None:
        if not self.room:
            return
        self.room = 0
        if self._timer is not None:
            self._timer.cancel()
        self.queue.leave(self)


class Leases:
    """All leases of one queue, by seq and group; expired ones are given back by the queue."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], Lease] = {}
        self._by_token: dict[str, Lease] = {}
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._by_token)

    def add(self, delivery: Delivery, group: str, expires_ms: int) -> Lease:
        """Return a new lease of a delivery."""
        lease = Lease(delivery, group, expires_ms)
        self._by_token[lease.token] = lease
        self._leases[group, delivery.message.seq] = lease
        heappush(self._due, (expires_ms, lease.token))
        return lease

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

    def extend(self, token: str, expires_ms: int) -> bool:
        """Move a lease's end; False if it has ended."""
        lease = self._by_token.get(token)
        if lease is None:
            return False
        lease.expires_ms = expires_ms
        heappush(self._due, (expires_ms, token))
        return True

    @property
    def next_due_ms(self) -> int | None:
        """Engine time when the next lease may end."""
        return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int) -> list[Lease]:
        """Remove and return the leases whose time has run out."""
        due = []
        while self._due and self._due[0][0] <= now_ms:
            expires_ms, token = heappop(self._due)
            lease = self._by_token.get(token)
            if lease is not None and lease.expires_ms == expires_ms:
                self.take(token)
                due.append(lease)
        return due

    def take_all(self) -> list[Lease]:
        """Remove and return all leases."""
        leases = list(self._by_token.values())
        self._by_token.clear()
        self._leases.clear()
        self._due.clear()
        return leases


Answer = Callable[[list[Lease] | CurbstoneError], None]
