"""The book of leases: which deliveries return by themselves, and when. `leasing` decides what happens then."""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop

from curbstone.core.engine.index import due
from curbstone.core.message import Delivery
from curbstone.core.names import QueueName
from curbstone.core.values import UNKNOWN, Lease, Leased, Who


class Leases:
    """All leases of one queue, by token, and by group and seq."""

    __slots__ = ("_alarm", "_by_token", "_due", "_leased", "_leases", "_name")

    def __init__(self, alarm: Callable[[int], None], leased: Leased, name: QueueName) -> None:
        """`alarm` is called with the time when a lease ends; each lease is noted in `leased`, with the queue's name."""
        self._name = name
        self._alarm = alarm
        self._leased = leased
        self._leases: dict[tuple[str, int], Lease] = {}
        self._by_token: dict[str, Lease] = {}
        self._due: list[tuple[int, str]] = []
        """A heap of (when it ends, token). Entries of leases that were settled or extended since are stale; they are
        swept out now and then."""

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def due_entries(self) -> int:
        """How many entries the heap has, stale ones included."""
        return len(self._due)

    def all(self) -> Collection[Lease]:
        """Return all leases."""
        return self._by_token.values()

    def add(self, delivery: Delivery, group: str, expires_ms: int, owner: str, who: Who = UNKNOWN) -> Lease:
        """Return a new lease of a delivery."""
        lease = Lease(delivery, group, expires_ms, owner, who)
        self._by_token[lease.token] = lease
        self._leases[group, delivery.message.seq] = lease
        self._leased.add(lease, self._name)
        self._note(lease)
        return lease

    def _note(self, lease: Lease) -> None:
        """Remember when a lease ends."""
        due.note(self._due, lease.expires_ms, lease.token, len(self._by_token), self._current)
        self._alarm(lease.expires_ms)

    def _current(self) -> list[tuple[int, str]]:
        return [(lease.expires_ms, lease.token) for lease in self._by_token.values()]

    def take(self, token: str) -> Lease | None:
        """Remove and return a lease, or None if it has ended."""
        lease = self._by_token.pop(token, None)
        if lease is not None:
            del self._leases[lease.group, lease.delivery.message.seq]
            self._leased.drop(lease)
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

    def extend(self, token: str, expires_ms: int, owner: str) -> bool:
        """Move a lease's end; return False if it has ended or is another's."""
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
        """Drop stale entries from the heap."""
        due.sweep(self._due, len(self._by_token), self._current)

    def take_all(self) -> list[Lease]:
        """Remove and return all leases."""
        leases = list(self._by_token.values())
        for lease in leases:
            self._leased.drop(lease)
        self._by_token.clear()
        self._leases.clear()
        self._due.clear()
        return leases


NO_LEASES = Leases(lambda _due_ms: None, Leased(), QueueName("", ""))
"""Shared by all queues until something is leased from them; nothing is ever added to it."""
