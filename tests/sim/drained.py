"""What both simulators ask at the end: that everything which was taken out and acked is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from curbstone.core.admin.queue import LocalQueue
from tests.kit.simulated import SimHost
from tests.sim.history import Violation

ROUND_MS = 10_000


def see_drained(
    host: SimHost,
    queues: Callable[[], Iterable[LocalQueue]],
    readers: Iterable[str],
    rounds: int,
    each_round: Callable[[], None] = lambda: None,
) -> None:
    """Let so many rounds pass, in which consumers ack what they get; raise Violation where a queue still holds any."""
    for _ in range(rounds):
        host.settle()
        each_round()
        host.pass_time(ROUND_MS)
    host.settle()
    for queue in queues():
        for group in readers:
            counts = queue.counts(group)
            if counts.rdy or counts.delayed or counts.wip:
                raise Violation(f"{queue.name} {group!r} says {counts} after everything was acked")
