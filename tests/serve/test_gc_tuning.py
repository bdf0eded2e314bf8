"""Full garbage collections are seldom and short: called by the clock, and what lives long is frozen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from random import Random

import pytest

from curbstone.process.gc_tuning import CHECK_EVERY_MS, FOUND_MIN, MIDDLE_MIN, QUEUES_MIN, YOUNG, Collections
from tests.kit.simulated import SimHost


class Ring:
    """It holds itself."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_objects_since_the_start_are_frozen_and_unfrozen() -> None:
    """Only what was recovered at the start was; queues made later were looked at in each full collection."""
    host = SimHost(Random(0), 0)
    queues: list[Ring] = []

    def time_passes() -> None:
        host.pass_time(CHECK_EVERY_MS)
        host.settle()

    Collections(host, lambda: len(queues)).start()
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


def test_thousand_messages_in_flight_start_no_collection() -> None:
    """Nearly all of it was alive, and looking at it took a tenth of the CPU time of a server with many queues."""
    begun: list[dict[str, int]] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        begun.append(info)

    Collections(SimHost(Random(0), 0), lambda: 0).start()
    gc.collect()
    gc.callbacks.append(watch)
    try:
        under_way = [[] for _ in range(20_000)]  # type: list[list[int]]
        assert not begun
        under_way += [[] for _ in range(YOUNG)]
        assert begun, "dead cycles would never be found"
    finally:
        gc.callbacks.remove(watch)


def looks_until(full: list[str], host: SimHost) -> int:
    """Return how many looks it takes until another full collection."""
    del full[:]
    for looks in range(1, 100):
        for _ in range(MIDDLE_MIN):
            gc.collect(1)
        host.pass_time(CHECK_EVERY_MS)
        host.settle()
        if full:
            return looks
    raise AssertionError("there was none")


def test_dead_cycles_are_found_by_the_clock_and_not_by_every_burst() -> None:
    """A burst of connections started full collections twice a second, and each held everybody up."""
    host = SimHost(Random(0), 0)
    full: list[str] = []
    Collections(host, lambda: 0).start()

    def watch(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            full.append(phase)

    gc.callbacks.append(watch)
    try:
        young, middle, _ = gc.get_threshold()
        lasting = [[] for _ in range(young * (middle + 1) * (MIDDLE_MIN + 4))]  # type: list[list[int]]
        assert not full
        dead = weakref.ref(ring := Ring())
        gc.collect(1)  # now it is old
        del ring
        assert dead() is not None
        host.pass_time(CHECK_EVERY_MS)
        host.settle()
        assert full
        assert dead() is None
        del lasting
        assert looks_until(full, host) == 2, "there was nothing to find, so the next look was left out"
        assert looks_until(full, host) == 4
        rings = [Ring() for _ in range(FOUND_MIN)]
        gc.collect(1)
        del rings
        assert looks_until(full, host) == 8
        assert looks_until(full, host) == 1, "there was much to find"
    finally:
        gc.callbacks.remove(watch)
