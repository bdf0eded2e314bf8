"""An idle, empty queue becomes small by itself, however it became empty."""

from __future__ import annotations

import pytest

from curbstone.core.options import MIB
from curbstone.core.values import Outcome
from tests.kit.lab import Lab, numbered

KIB = 1024


@pytest.mark.parametrize("sync", ["always", "interval:2000", "never"])
@pytest.mark.parametrize("how", ["auto", "acked", "leased", "expired"])
def test_emptied_queue_shrinks_while_idle(how: str, sync: str) -> None:
    """What emptied it was a commit, and no turn came after that: it kept 1.3 MB for ever."""
    lab = Lab(cap=8 * MIB, sync=sync)
    queue = lab.queue(ttl=1 if how == "expired" else 0)
    lab.pass_time(5000)  # what was to be done for the new queue is done
    lab.publish(queue, *numbered(60, 50_000))
    assert lab.held(queue) > MIB
    if how == "leased":
        tokens = [lease.token for _ in range(60) for lease in lab.lease(queue, 60)]
        queue.settle_leases(tokens, Outcome.ACK, lambda *_given: None)
    elif how != "expired":
        consumer = queue.subscribe(lambda _given: None, window=60, auto=how == "auto", on_closed=lambda _error: None)
        if how == "acked":
            lab.settle()
            consumer.ack(list(consumer.unsettled))
    while lab.host.soon:  # all turns there are come before the disk has answered
        lab.host.turn()
    lab.pass_time(5000)
    assert lab.held(queue) <= 64 * KIB
    commits = queue.stats.commits
    lab.pass_time(60_000)
    assert queue.stats.commits == commits, "and then it rests"
