"""Leases of a simulated run: taken for a while, and settled or given back one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.values import Lease, Outcome
from tests.kit.simulated import SimHost

if TYPE_CHECKING:
    from tests.sim.run import Run

LONG_MS, SHORT_MS = 60_000_000, 2000


def take_or_settle(run: Run) -> None:
    """Take a few for a while, or settle one of those."""
    if run.leases and run.rng.random() < 0.6:
        _settle(run, *run.leases.pop(run.rng.randrange(len(run.leases))))
        return
    queue = run.any_queue()
    epoch = run.epoch

    def leased(leases: list[Lease] | CurbstoneError) -> None:
        for lease in leases if isinstance(leases, list) else ():
            run.history.handed.add(run.history.token(lease.delivery.message))
        if isinstance(leases, list) and epoch is run.epoch:
            for lease in leases:
                run.turns.handed_out(queue, "", lease.delivery.message)
            run.leases += [(queue, lease) for lease in leases]

    # Leases run out by themselves: who holds a message then is not followed.
    queue.lease(run.rng.choice([1, 3]), run.rng.choice([LONG_MS, LONG_MS, SHORT_MS]), leased)


def _settle(run: Run, queue: LocalQueue, lease: Lease) -> None:
    token = run.history.token(lease.delivery.message)
    run.history.live.pop(token, None)
    run.doom([token])
    run.asked.add(lease.token)

    def settled(error: CurbstoneError | None, count: int, stale: list[str]) -> None:
        if error is None and count:
            run.history.gone.add(token)
        elif error is not None and not stale:
            run.leases.append((queue, lease))

    queue.settle_leases([lease.token], Outcome.ACK, settled)


def give_back(host: SimHost, queue: LocalQueue, token: str) -> None:
    """Continue until it is taken: a queue that failed refuses settles for a while."""

    def done(error: CurbstoneError | None, _settled: int, _stale: list[str]) -> None:
        if error is not None:
            host.call_later(1000, lambda: give_back(host, queue, token))

    queue.settle_leases([token], Outcome.NACK, done)
