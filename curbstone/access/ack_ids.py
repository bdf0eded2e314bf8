"""ackIds: each names a lease, or a delivery that a connection holds. Its owner can settle it over any protocol.

The id of a lease is the engine's token. The ids of a connection's deliveries begin with a random name of NAME_CHARS
random characters; the connection chooses the rest. So the ids of a connection that has ended are never valid again. To
settle a delivery, a client needs the right to receive from its queue, and must be the user who received it:
`access.authorization` checks the first, this module the second.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.core.port import Consumer, Queue
from curbstone.core.values import Outcome

NAME_CHARS = 12

Settled = Callable[[CurbstoneError | None, int, list[str]], None]
"""(error, how many were settled, the ackIds that are no longer valid)"""


class Held(NamedTuple):
    """A delivery that a connection holds."""

    queue: Queue
    consumer: Consumer
    seq: int


class Holder(Protocol):
    """A connection whose deliveries can also be settled over other connections."""

    @property
    def owner(self) -> str:
        """The owner of its deliveries, as in `Identity.owner`."""

    def held(self, ack_id: str) -> Held | None:
        """Return the delivery of one of its own ackIds; None if it has ended, or can't be settled over other
        connections.
        """

    def ended(self, ack_id: str) -> None:
        """Note that the delivery of this ackId was settled over another connection."""


class AckIds:
    """The ackIds of all connections."""

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        self._watchers: list[Callable[[Iterable[str]], None]] = []

    def enter(self, holder: Holder) -> str:
        """Return the name that a connection's ackIds must begin with. The connection must call `leave` with it."""
        while (name := secrets.token_hex(NAME_CHARS // 2)) in self._holders:
            pass
        self._holders[name] = holder
        return name

    def leave(self, name: str) -> None:
        """Forget a connection that is over. A second call does nothing."""
        self._holders.pop(name, None)

    def watch_leases(self, ended: Callable[[Iterable[str]], None]) -> None:
        """Call `ended` with the ids of leases that clients have settled, or tried to settle after they had ended."""
        self._watchers.append(ended)

    def find(self, ack_id: str, owner: str) -> Held | None:
        """Return the delivery that an ackId names, if a connection of this owner holds it; else None."""
        holder = self._holders.get(ack_id[:NAME_CHARS])
        return holder.held(ack_id) if holder is not None and holder.owner == owner else None

    def settle(
        self,
        queue: Queue,
        ack_ids: list[str],
        outcome: Outcome,
        on_done: Settled,
        *,
        delay_ms: int | None,
        error: str,
        owner: str,
    ) -> None:
        """Settle the deliveries that these ackIds of one queue name. This frees the windows of connections at once."""
        leases: list[str] = []
        stale: list[str] = []
        held: dict[Consumer, dict[int, str]] = {}
        for ack_id in ack_ids:
            found = self.find(ack_id, owner)
            if found is None:
                leases.append(ack_id)
            elif found.queue.uid != queue.uid or found.seq in held.setdefault(found.consumer, {}):
                stale.append(ack_id)
            else:
                held[found.consumer][found.seq] = ack_id
        done = self._gather(1 + len(held), leases, stale, on_done)
        queue.settle_leases(leases, outcome, done, delay_ms=delay_ms, error=error, owner=owner)
        for consumer, ids in held.items():
            self._settle_held(consumer, ids, outcome, delay_ms, error, done)

    def _gather(self, parts: int, leases: list[str], stale: list[str], on_done: Settled) -> Settled:
        """Return a callback for each part; the last call reports the sum to `on_done`."""
        left = parts
        first: CurbstoneError | None = None
        total = 0

        def done(error: CurbstoneError | None, settled: int, ended: list[str]) -> None:
            nonlocal left, first, total
            left -= 1
            first = first or error
            total += settled
            stale.extend(ended)
            if left:
                return
            if first is None:
                for watcher in self._watchers:
                    watcher(leases)
            on_done(first, 0 if first else total, stale)

        return done

    def _settle_held(
        self,
        consumer: Consumer,
        ids: dict[int, str],
        outcome: Outcome,
        delay_ms: int | None,
        error: str,
        on_done: Settled,
    ) -> None:
        seqs = list(ids)

        def done(failed: CurbstoneError | None) -> None:
            on_done(failed, len(seqs), [])

        if outcome is Outcome.ACK:
            consumer.ack(seqs, done)
        elif outcome is Outcome.NACK:
            consumer.nack(seqs, delay_ms, error, done)
        else:
            consumer.reject(seqs, error, done)
        for seq, ack_id in ids.items():
            if seq not in consumer.unsettled:  # if the engine refused, the connection still holds it
                self._holders[ack_id[:NAME_CHARS]].ended(ack_id)
