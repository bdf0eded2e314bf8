"""The timer of a session: on time it judges, late it lets what came meanwhile be read first."""

from __future__ import annotations

from random import Random

from curbstone.stomp.tick_timer import AGAIN_MS, TickTimer
from tests.kit.simulated import SimHost


class Watched:
    def __init__(self) -> None:
        self.host = SimHost(Random(1), 1_000)
        self.looks: list[int] = []
        self.pulse = TickTimer(self.host, self._tick)
        self.pulse.check()

    def _tick(self, now_ms: int) -> int:
        self.looks.append(now_ms - 1_000)
        return now_ms + 100


def test_tick_timer_fires_when_requested() -> None:
    watched = Watched()
    watched.host.pass_time(250)
    assert watched.looks == [0, 100, 200]


def test_late_timer_waits_once_before_acting() -> None:
    watched = Watched()
    watched.host.jump(5_000)  # the process was stopped
    watched.host.pass_time(0)
    assert watched.looks == [0]
    watched.host.pass_time(AGAIN_MS)
    assert watched.looks == [0, 5_000 + AGAIN_MS]


def test_always_late_timer_acts_eventually() -> None:
    watched = Watched()
    for _ in range(4):
        watched.host.jump(1_000)
        watched.host.pass_time(0)
    assert len(watched.looks) == 3


def test_closed_timer_does_not_fire() -> None:
    watched = Watched()
    watched.pulse.stop()
    watched.pulse.check()
    watched.host.pass_time(1_000)
    assert watched.looks == [0]
