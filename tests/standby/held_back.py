"""The simulated host of a server whose confirms wait for a standby."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.kit.simulated import SimHost

if TYPE_CHECKING:
    from tests.standby.pair import Pair


class PairHost(SimHost):
    """A host with the rule of `core.host.AsyncioHost`: reports of jobs that succeeded wait at the barrier."""

    def __init__(self, rng: Random, wall_ms: int, pair: Pair) -> None:
        super().__init__(rng, wall_ms)
        self.pair = pair
        self._held_back: list[tuple[int, Callable[[], object]]] = []

    def work(self) -> bool:
        barrier, before = self.pair.barrier, len(self.ended)
        barrier.begin()
        worked = super().work()
        mark = barrier.end()
        if mark and len(self.ended) > before:
            report = self.ended[-1]
            assert isinstance(report, partial)
            if report.args[-1] is None:  # the error; `partial` of a `partial` has the arguments of both
                self._held_back.append((mark, self.ended.pop()))
        return worked

    def turn(self) -> bool:
        moved = self.pair.step()
        left = []
        for mark, report in self._held_back:
            if self.pair.barrier.allows(mark):
                self.pair.released(mark)
                self.ended.append(report)
            else:
                left.append((mark, report))
        self._held_back = left
        return super().turn() or moved or bool(left)
