"""Simulated histories over two disks: the end of the server is a failover to the disk of its standby, or a switchover.

`PairRun` has all the judges of `tests.sim.run`. In synchronous runs nothing that was confirmed may be missing after a
failover. In asynchronous ones, whatever was confirmed before the cut has to be there: the cut is how far the standby
had applied the stream, or had made it durable if its power was cut, too. After a switchover nothing may be missing.

    python -m tests.standby.pair_run SEED SECONDS
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from curbstone.core.disk import Disk
from curbstone.standby.applying import Applier
from curbstone.standby.state_files import StateFiles
from tests.kit.simulated import Crash, SimHost
from tests.sim.disk_faults import disk_recovers
from tests.sim.recording_disk import RecordingDisk
from tests.sim.run import Run
from tests.standby.held_back import PairHost
from tests.standby.machine import SimSyncs, Standby
from tests.standby.marked import FROM_THE_START, Mark, Marked
from tests.standby.pair import Pair

FOCI = ["remake", "recap", "fill", "pause", "numbers", "keys", "overflow", "undo", "large"]
ASYNC_FOCI = ["remake", "recap", "fill", "undo", "large"]
GAPS = [0, 1 << 20, 1 << 24]


class PairRun(Run):
    """See the module's docstring."""

    counts: Counter[str] = Counter()

    def __init__(self, seed: int, *, is_sync: bool = True, **more: Any) -> None:
        self.pair_rng = Random(f"pair {seed}")
        self.is_sync = is_sync
        self.may_crash = False
        self.is_power_aimed = False
        self._has_handed_over = False
        self._gap = 0
        self._standby: Standby | None = None
        self.lives: dict[int, int] = {}
        """The lives of the server, numbered in their order."""
        super().__init__(seed, **more)
        if not is_sync:
            self.history.confirmed = Marked(self._mark)
            self.history.gone = Marked(self._mark)
            self.reader = None

    def _mark(self) -> Mark:
        return self.lives[self.pair.stream.life], self.pair.reported

    def opened_disk(self) -> Disk:
        return self.pair.disk

    def new_host(self) -> SimHost:
        if self._standby is None:
            self._standby = Standby(RecordingDisk(self.pair_rng))
        self.pair = Pair(self, self._standby)
        self.lives[self.pair.stream.life] = len(self.lives)
        return PairHost(self.rng, self.wall_ms, self.pair)

    def start(self) -> None:
        super().start()
        gap, self._gap = self._gap, 0
        for queue in self.broker.queues() if gap else []:
            queue.state.next_seq += gap

    def _guarded(self, action: Callable[[], None]) -> None:
        self.may_crash = True
        super()._guarded(self._switch_over if self.pair_rng.random() < 0.01 else action)
        self.may_crash = False
        # Where syncs fail, changes of names do, too.
        self.disk.doubt_chance = max(self.disk.doubt_chance, self.disk.eio_chance / 4)

    def _switch_over(self) -> None:
        """Hand over to the standby, if there is one that could take over."""
        if self.pair.hand_over():
            self._has_handed_over = True
            raise Crash

    def power_off(self, crash: Crash | None = None) -> None:
        pair, rng = self.pair, self.pair_rng
        self.crashes += 1
        self.durable.crashed()
        is_power = self.rng.choice(self.ends) == "power"
        if self._has_handed_over and not (pair.is_handed_over or pair.standby.applier.state_files.can_resume):
            self._has_handed_over = False  # it has lost its power before it took over: the former server starts again
        elif self._has_handed_over:
            pass
        elif self.is_power_aimed and "power" in self.ends:
            is_power = True
        else:
            pair.deliver_some()
        if self._has_handed_over or (
            pair.may_take_over and self.pair.state_files.state.is_server and rng.random() < 0.8
        ):
            self._fail_over(is_power)
        else:
            self.counts["restarts"] += 1
            if is_power:
                self.disk.crash()
            if rng.random() < 0.3:
                pair.standby.lose_power()
                pair.standby.start()
        self.is_power_aimed = self._has_handed_over = False
        self.disk.aim_at_nothing()
        disk_recovers(self.rng, self.disk)
        self.wall_ms = self.host.now_ms() + self.rng.choice([1, 1000, 60_000])
        self.consumers.clear()
        self.leases.clear()
        self.history.crashed()

    def _fail_over(self, is_power: bool) -> None:
        """The server is gone, maybe together with the power of the standby. The standby's disk takes over."""
        rng, pair = self.pair_rng, self.pair
        standby, applier = pair.standby, pair.standby.applier
        self.counts["failovers"] += not self._has_handed_over
        disk_recovers(rng, standby.disk)
        standby.disk.crash_in = -1
        position = applier.state_files.position
        cut = (self.lives[position.life], position.applied) if position is not None else FROM_THE_START
        may_lose_power = not applier.state_files.state.is_catching_up  # after that it would not be promoted
        if is_power and may_lose_power and (self.is_power_aimed or rng.random() < 0.6):
            self.counts["failovers with both powers cut"] += 1
            # Behind a sync that has failed, nothing of this life has to be there: nobody knows what that sync was for.
            cut = min(cut, (cut[0], 0 if applier.has_failed else applier.durable or cut[1]))
            standby.lose_power()
        elif rng.random() < 0.5:  # its process was killed, too
            standby.start()
        else:
            applier.close()
        Applier(standby.disk, SimSyncs(), StateFiles(standby.disk, b"")).promote()
        # Without a sync what was handed over is in memory only, and the standby lost its power before it served.
        has_lost_memory = position is None and self.sync.kind != "always"
        if not self.is_sync and (not self._has_handed_over or has_lost_memory):
            self._lose_behind(cut)
        self._gap = rng.choice(GAPS)
        old, self.disk = self.disk, standby.disk
        self.disk.caps, old.caps = old.caps, lambda _directory: None
        self.disk.over_cap.clear()
        disk_recovers(rng, old)
        old.aim_at_nothing()
        if rng.random() < 0.5:
            old.crash()
        self._standby = Standby(old)

    def _lose_behind(self, cut: Mark) -> None:
        """What was confirmed behind the cut may be missing, and what was settled there may be back."""
        history = self.history
        assert isinstance(history.confirmed, Marked) and isinstance(history.gone, Marked)
        before, confirmed = len(history.confirmed) + len(history.gone), set(history.confirmed)
        history.confirmed.cut(cut)
        history.gone.cut(cut)
        lost = confirmed - history.confirmed
        # If some of a transaction is settled, nobody can tell of it whether all of it is missing or only the rest. And
        # what is missing looks like what was acked.
        unclear = [
            unit
            for unit in history.units
            if not lost.isdisjoint(unit.acks)
            or not (lost.isdisjoint(unit.publishes) or history.doomed.isdisjoint(unit.publishes))
        ]
        history.doomed_alone.update(*[unit.acks for unit in unclear])
        history.units = [unit for unit in history.units if unit not in unclear]
        self.turns.go_back()
        self.counts["confirmed and behind the cut"] += before - len(history.confirmed) - len(history.gone)
        self.counts["confirmed and before the cut"] += len(history.confirmed) + len(history.gone)
        self.directories.forget()
        self.durable.forget()


def simulate(seed: int, *, is_sync: bool, step: int) -> None:
    """Run one history of a series; `step` says which kind."""
    foci = FOCI if is_sync else ASYNC_FOCI
    focus = foci[step // 4 % len(foci)] if step % 4 > 1 else ""
    try:
        PairRun(seed, is_sync=is_sync, faults=step % 2 == 1, focus=focus).run()
    except BaseException as error:
        error.add_note(f"seed {seed}: PairRun({seed}, is_sync={is_sync}, faults={step % 2 == 1}, focus={focus!r})")
        raise


def main() -> None:
    """Run histories from a seed on, for some seconds; print what failed."""
    logging.disable(logging.CRITICAL)
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    end = time.monotonic() + seconds
    runs = failed = 0
    while time.monotonic() < end and failed < 5:
        for is_sync in (True, False):
            try:
                simulate(seed + runs, is_sync=is_sync, step=runs)
            except Exception as error:
                failed += 1
                print(type(error).__name__, str(error)[:300], *error.__notes__, flush=True)
        runs += 1
    print(f"{2 * runs} histories, {failed} failed", dict(PairRun.counts))


if __name__ == "__main__":
    main()
