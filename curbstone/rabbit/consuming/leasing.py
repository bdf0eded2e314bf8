"""Pops and leases of one queue. A lease belongs to the gateway that granted it, which its token names."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.holders import waiting_call
from curbstone.core.host import Timer
from curbstone.core.message import Delivery
from curbstone.core.values import UNNAMED, AllDone, Answer, ClientInfo, Done, Holder, Lease, Outcome, ignore
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.consuming import dead_letters
from curbstone.rabbit.consuming.pull import Pull, Pulled, Puller

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

Popped = Callable[[Delivery | None | CurbstoneError], None]
Settled = Callable[[CurbstoneError | None, int, list[str]], None]


class _Held:
    """A lease, and the channel and tag that settle it."""

    __slots__ = ("lease", "settling", "tag", "timer")

    def __init__(self, lease: Lease, tag: int, settling: Settling) -> None:
        self.lease = lease
        self.tag = tag
        self.settling = settling
        self.timer: Timer


class Leasing:
    """The pops and leases of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pullers: dict[str, Puller] = {}
        self._held: dict[str, _Held] = {}
        """The leases, by token."""
        self.attempts = 0
        """The number of pops and leases since the start."""

    def unsettled(self, group: str) -> int:
        """Return the number of leases of a group."""
        return sum(held.lease.group == group for held in self._held.values())

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a message. The broker counts each as a consumer."""
        return sum(puller.waiting for puller in self._pullers.values())

    @property
    def is_used(self) -> bool:
        """Whether clients have leases or wait for messages."""
        return bool(self._held) or any(puller.has_pulls for puller in self._pullers.values())

    def all(self) -> list[Lease]:
        """Return the leases that this gateway granted."""
        return [held.lease for held in self._held.values()]

    def calls(self) -> list[Holder]:
        """Return a holder for each call that waits for a message on this gateway."""
        pulls = [(group, pull) for group, puller in self._pullers.items() for pull in puller.waiting_pulls]
        return [waiting_call(group, pull.count, pull.client_info) for group, pull in pulls]

    def queue_paused(self) -> None:
        """Act on a change of the queue's option `paused`."""
        for puller in self._pullers.values():
            puller.queue_paused()

    def _of(self, group: str) -> Puller:
        self.attempts += 1
        puller = self._pullers.get(group)
        if puller is None:
            puller = self._pullers[group] = Puller(self._queue, group)
        return puller

    def pop(self, on_done: Popped, group: str, wait_ms: int, is_wanted: Callable[[], bool] | None) -> Pull:
        def taken(result: list[Pulled] | CurbstoneError) -> None:
            if isinstance(result, CurbstoneError):
                on_done(result)
                return
            if not result:
                self._queue.engine.host.call_soon(lambda: on_done(None))
                return
            delivery, tag, settling = result[0]
            if is_wanted is not None and not is_wanted():
                settling.give_back(tag)
                self._queue.engine.host.call_soon(lambda: on_done(None))
                return
            settling.ack(tag)

            def fenced(error: CurbstoneError | None) -> None:
                self._queue.stats.acked += error is None
                on_done(error or delivery)

            settling.fence(lambda lost: fenced(self._queue.engine.lost(lost)))

        return self._of(group).pull(1, wait_ms, taken)

    def lease(
        self,
        count: int,
        duration_ms: int,
        on_done: Answer,
        group: str,
        wait_ms: int,
        owner: str,
        client_info: ClientInfo,
    ) -> Pull:
        def taken(result: list[Pulled] | CurbstoneError) -> None:
            if isinstance(result, CurbstoneError):
                on_done(result)
                return
            leases = [self._add(each, group, duration_ms, owner, client_info) for each in result]
            self._queue.changed()
            self._queue.engine.host.call_soon(lambda: on_done(leases))

        return self._of(group).pull(count, wait_ms, taken, client_info)

    def _add(self, taken: Pulled, group: str, duration_ms: int, owner: str, client_info: ClientInfo) -> Lease:
        delivery, tag, settling = taken
        delivery.handed_ms = self._queue.engine.host.now_ms()
        lease = Lease(delivery, group, delivery.handed_ms + duration_ms, owner, client_info)
        lease.token = f"{self._queue.engine.rpc.address}.{secrets.token_urlsafe(16)}"
        held = self._held[lease.token] = _Held(lease, tag, settling)
        self._queue.engine.leased.add(lease, self._queue.name)
        self._arm(held, duration_ms)
        return lease

    def _arm(self, held: _Held, duration_ms: int) -> None:
        held.timer = self._queue.engine.host.call_later(duration_ms, lambda: self._run_out(held))

    def _run_out(self, held: _Held) -> None:
        if self._take(held.lease.token) is not None:
            self._give_back(held, dead_letters.MAX_TRIES, 0, "the lease ran out", ignore)

    def _take(self, token: str, owner: str | None = None) -> _Held | None:
        """Remove and return a lease; None if it is stale, belongs to another owner, or its channel is lost."""
        held = self._held.get(token)
        if held is None or owner not in (None, held.lease.owner):
            return None
        del self._held[token]
        self._queue.engine.leased.drop(held.lease)
        held.timer.cancel()
        return held if held.settling.channel.is_open else None

    def _give_back(self, held: _Held, reason: str, delay_ms: int | None, error: str, on_done: Done) -> None:
        lease = held.lease
        self._queue.end_delivery(held.settling, held.tag, lease.group, lease.delivery, reason, delay_ms, error, on_done)

    # --- settling

    def settle(
        self, tokens: list[str], outcome: Outcome, on_done: Settled, delay_ms: int | None, error: str, owner: str
    ) -> None:
        """Settle leases of this gateway; all other tokens are reported as stale."""
        stale: list[str] = []
        settled = 0
        touched: dict[int, Settling] = {}
        done = AllDone(lambda failed: on_done(failed, 0 if failed else settled, stale))
        for token in tokens:
            held = self._take(token, owner)
            if held is None:
                stale.append(token)
                continue
            settled += 1
            touched[id(held.settling)] = held.settling
            if outcome is Outcome.ACK:
                held.settling.ack(held.tag)
                self._queue.stats.acked += 1
            else:
                done.add()
                reason = dead_letters.MAX_TRIES if outcome is Outcome.NACK else dead_letters.REJECTED
                self._give_back(held, reason, delay_ms, error, done)
        done.add(len(touched))
        for settling in touched.values():
            settling.fence(lambda lost: done(self._queue.engine.lost(lost)))
        self._queue.changed()
        self._queue.engine.host.call_soon(lambda: done(None))

    def settle_seq(self, seq: int, owner: str) -> bool | None:
        """Settle the lease of a message of the unnamed group.

        Return False if it belongs to another owner, and None without a lease.
        """
        for token, held in self._held.items():
            if held.lease.delivery.message.seq == seq and held.lease.group == UNNAMED:
                taken = self._take(token, owner)
                if taken is not None:
                    taken.settling.ack(taken.tag)
                    self._queue.stats.acked += 1
                    self._queue.changed()
                return taken is not None
        return None

    def extend(self, tokens: list[str], duration_ms: int, owner: str) -> list[str]:
        """Extend leases of this gateway to `duration_ms` from now; return the stale tokens."""
        stale = []
        for token in tokens:
            held = self._held.get(token)
            if held is None or held.lease.owner != owner or not held.settling.channel.is_open:
                stale.append(token)
                continue
            held.timer.cancel()
            held.lease.expires_ms = self._queue.engine.host.now_ms() + duration_ms
            self._arm(held, duration_ms)
        return stale

    def give_back(self, leases: list[Lease]) -> None:
        """End leases that no client has seen, without counting a try."""
        for lease in leases:
            held = self._take(lease.token)
            if held is not None:
                held.settling.give_back(held.tag)
        self._queue.changed()

    def close(self, error: CurbstoneError) -> None:
        """Requeue leased messages: the queue is gone or the server is stopping."""
        for held in self._held.values():
            held.timer.cancel()
            self._queue.engine.leased.drop(held.lease)
        self._held.clear()
        for puller in self._pullers.values():
            puller.close(error)
