"""What the engine counts of its commits."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import Unavailable
from curbstone.core.stats import COMMIT_MESSAGES_BOUNDS, COMMIT_US_BOUNDS, Histogram
from tests.kit.lab import Lab


def test_histogram_value_belongs_to_the_first_bound_not_exceeded() -> None:
    histogram = Histogram((1, 10))
    for value in (0, 1, 2, 10, 11):
        histogram.add(value)
    assert (histogram.counts, histogram.sum, histogram.count) == ([2, 2, 1], 24, 5)


def test_histogram_bounds_increase() -> None:
    for bounds in (COMMIT_US_BOUNDS, COMMIT_MESSAGES_BOUNDS):
        assert list(bounds) == sorted(set(bounds))


def test_failed_commit_is_counted_separately(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, b"a", b"b")
    commits = lab.broker.commits
    before = commits.took_us.count
    assert (commits.messages.sum, commits.failed) == (2, 0)
    lab.disk.eio_chance = 1
    with pytest.raises(Unavailable):
        lab.publish(queue, b"c")
    assert commits.failed > 0
    assert (commits.took_us.count, commits.messages.count, commits.messages.sum) == (before, before, 2)


def test_syncs_are_counted_per_mode() -> None:
    syncs = {}
    for mode in ("always", "interval:100", "never"):
        lab = Lab(sync=mode)
        queue = lab.queue()
        for body in (b"a", b"b", b"c"):
            lab.publish(queue, body)
        lab.pass_time(1000)
        syncs[mode] = lab.broker.commits.syncs
    assert syncs == {"always": 3, "interval:100": 1, "never": 0}
