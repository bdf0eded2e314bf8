"""Full garbage collections stay short: what lives long is frozen, again when there are many more queues or fewer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from random import Random

import pytest

from curbstone.collection import LOOK_EVERY_MS, QUEUES_MIN, freeze
from tests.sim.world import SimHost


class Ring:
    """It holds itself."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_was_made_since_the_start_is_frozen_and_thawed_again() -> None:
    """Only what was recovered at the start was; queues made later were looked at in each full collection."""
    host = SimHost(Random(0), 0)
    queues: list[Ring] = []

    def time_passes() -> None:
        host.pass_time(LOOK_EVERY_MS)
        host.settle()

    freeze(host, lambda: len(queues))
    at_first = gc.get_freeze_count()
    queues += [Ring() for _ in range(2 * QUEUES_MIN - 1)]
    time_passes()
    assert gc.get_freeze_count() <= at_first
    queues.append(Ring())
    time_passes()
    assert gc.get_freeze_count() > at_first + QUEUES_MIN
    dead = weakref.ref(queues[0])
    del queues[: QUEUES_MIN - 1]
    time_passes()
    gc.collect()
    assert dead() is not None
    del queues[0]
    time_passes()
    assert dead() is None
