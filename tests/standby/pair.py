"""Simulated histories over two disks: the end of the server is a failover to the disk of its standby.

`PairRun` has all the judges of `tests.sim.run`. In synchronous runs nothing that was confirmed may be missing after a
failover. In asynchronous ones, whatever was confirmed before the cut has to be there: the cut is how far the standby
had applied the stream, or had made it durable if its power was cut, too.

    python -m tests.standby.pair SEED [SECONDS] [--plant NAME]
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from curbstone.core.disk import Disk
from curbstone.standby.applying import Applier, DiskFull, SyncFailed
from curbstone.standby.barrier import StandbyBarrier, Standing
from curbstone.standby.copying import Copy, digests
from curbstone.standby.frames import InSync
from curbstone.standby.place import Place, place_of_server
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.stream import Cursor, Stream
from tests.kit.simulated import Crash, SimHost
from tests.sim.evidence import NotingDisk
from tests.sim.run import Run
from tests.sim.trouble import UNLIMITED, disk_recovers
from tests.standby.held_back import PairHost
from tests.standby.machine import SimSyncs, Standby
from tests.standby.marked import FROM_THE_START, Mark, Marked

FOCI = ["remake", "recap", "fill", "pause", "numbers", "keys", "overflow", "undo", "large"]
ASYNC_FOCI = ["remake", "recap", "fill", "undo", "large"]
PATIENCE_MS = 10_000
GAPS = [0, 1 << 20, 1 << 24]


class Pair:
    """A server's stream, the way to its standby, and the standby: one life of the server."""

    def __init__(self, run: PairRun, standby: Standby) -> None:
        self.rng = run.pair_rng
        self.run = run
        self.standby = standby
        self.stream = Stream(lambda: self.clock_ms, kept_bytes=self.rng.choice([1 << 14, 1 << 20]))
        self.disk = ShippingDisk(run.disk, self.stream)
        self.clock_ms = 0
        aim = run.disk.crash_in, run.disk.aims_at_names
        run.disk.aim_at_nothing()
        self.place = place_of_server(run.disk)
        run.disk.crash_in, run.disk.aims_at_names = aim
        self.barrier = StandbyBarrier(
            self.stream,
            lambda: self.clock_ms,
            lambda: None,
            patience_ms=PATIENCE_MS,
            syncs_always=run.sync.kind == "always",
            is_alone=not self.place.state.believed or not run.is_sync,
            note_alone=lambda is_alone: self.place.change(believed="" if is_alone else "standby"),
        )
        self.reported = 0
        """The highest mark that was reported."""
        self._cursor: Cursor | None = None
        self._copy: Copy | None = None
        self._wire: deque[bytes] = deque()
        self._p_sync = self.rng.choice([0.02, 0.1, 0.5])
        self._p_net = self.rng.choice([0.2, 0.6, 1.0])
        self._is_aimed = False
        """Whether the standby was killed in the middle of a sync: then the power of both goes soon."""
        self._frozen = 0
        """For how many steps nothing happens there, so that the end of the server comes before the end of a sync."""

    # --- the connection

    def _connect(self) -> None:
        applier, place = self.standby.applier, self.standby.applier.place
        try:
            place.belong(self.place.state.server, self.place.state.term)
            if not self.barrier.may_be_believed:
                place.change(in_sync=InSync.NO)
            if place.can_resume and place.position is not None and place.position.life == self.stream.life:
                position = applier.resume()
                self._cursor = self.stream.resume(position.applied, lambda _is_urgent: None)
            if self.standby.left_by == self.stream.life:
                self.standby.left_by = 0
            if self._cursor is not None:
                self.run.counts["resumed"] += 1
                return
            is_whole = place.state.wants_full_copy or self.standby.disk.hides_loss
            self.run.counts["copied in full" if is_whole else "compared"] += 1
            self._copy = Copy(
                self.stream, self.run.disk, {} if is_whole else digests(self.standby.disk), lambda _is_urgent: None
            )
            self._cursor = self._copy.cursor
            applier.begin(self.stream.life, self._cursor.position)
        except Crash:
            self._restart()
        except (OSError, SyncFailed):
            self._fail()

    def lose(self) -> None:
        """Lose the connection, with what is on its way."""
        if self._cursor is not None:
            self.run.counts["lost connections"] += 1
            self.stream.detach(self._cursor)
        self._cursor = self._copy = None
        self._wire.clear()
        if self.run.is_sync:
            self.barrier.lost()

    def _restart(self) -> None:
        """The standby's process is killed, or its machine loses its power."""
        standby = self.standby
        self._is_aimed = True
        self.lose()
        if self.rng.random() < 0.3:
            self.run.counts["power cuts of the standby"] += 1
            standby.lose_power()
        else:
            self.run.counts["kills of the standby"] += 1
        standby.start()

    def _fail(self) -> None:
        """The standby can't go on: it ends, and is started again on a disk that works."""
        self.run.counts["failures of the standby"] += 1
        disk_recovers(self.rng, self.standby.disk)
        self.standby.disk.crash_in = -1
        self.standby.applier.give_up()
        self.lose()
        self.standby.start()

    # --- what happens

    def step(self) -> bool:
        """Let something happen on the way to the standby, or there; return False if there was nothing to do."""
        if self._frozen:
            self._frozen -= 1
            return True
        rng = self.rng
        self.clock_ms += rng.choice([0, 0, 1, 20])
        if rng.random() < 0.003:
            self._trouble()
        if not self.run.is_sync and self._cursor is not None and rng.random() < 0.01:
            self._catch_up()
        if self.run.is_sync and not self._tick():
            self.run.counts["silences"] += 1
            self.lose()
        if self.barrier.standing is Standing.ALONE and self._cursor is None:
            self.standby.left_by = self.stream.life
        elif self.standby.applier.place.state.in_sync == InSync.NO:
            self.standby.left_by = 0
        if self._cursor is None:
            if rng.random() < 0.3:
                self._connect()
            elif rng.random() < 0.2:
                self.clock_ms += rng.choice([1000, PATIENCE_MS])
            return True
        if self._cursor.is_cut_off:
            self.run.counts["cut off"] += 1
            self.lose()
            return True
        if rng.random() < (0.01 if self.standby.syncs.pending else 0.002):
            if rng.random() < 0.3:
                self.lose()
            elif rng.random() < 0.3:
                self._restart()
            else:
                self.standby.disk.crash_in = rng.randrange(12)
            return True
        return self._go_on()

    def _tick(self) -> bool:
        try:
            return self.barrier.tick()
        except OSError:
            self.run.counts["notes that failed"] += 1
            return True

    def _catch_up(self) -> None:
        """The standby begins to catch up, or has."""
        applier = self.standby.applier
        try:
            if applier.place.state.is_catching_up:
                applier.caught_up()
            elif applier.is_usable:
                self.run.counts["began to catch up"] += 1
                applier.catch_up()
        except Crash:
            self._restart()
        except (OSError, SyncFailed):
            self._fail()

    def _trouble(self) -> None:
        """The standby's disk fails, is full or works again; or time passes in which nobody hears anything."""
        disk, rng = self.standby.disk, self.rng
        what = rng.randrange(8)
        if what == 0 and self.run.faults:
            disk.eio_chance, disk.doubt_chance = rng.choice([(0.2, 0), (0, 0.1), (0.1, 0.1)])
        elif what == 1 and self.run.faults:
            disk.capacity = sum(len(inode.cache) for inode in disk.names.values()) + rng.randrange(4096)
        elif what == 2:
            self.clock_ms += 4000
        else:
            disk_recovers(rng, disk)

    def _go_on(self) -> bool:
        """Copy, send, apply, sync and acknowledge a little."""
        rng, standby = self.rng, self.standby
        assert self._cursor is not None
        did = False
        try:
            if self._copy is not None and self._cursor.pending_bytes < 100_000:
                if not self._copy.step():
                    self._copy = None
                did = True
            if rng.random() < self._p_net:
                self._wire.extend(self._cursor.take(1 << rng.randrange(4, 18)))
            if self._wire and rng.random() < self._p_net:
                self.receive(rng.choice([1, 1, 2, 5, 50]))
                did = True
            else:
                standby.applier.work()
            if standby.syncs.pending and rng.random() < self._p_sync:
                rng.choice(standby.syncs.pending)()
                did = True
        except DiskFull:
            self.run.counts["full disks of the standby"] += 1
            if rng.random() < 0.1:
                standby.disk.capacity = UNLIMITED
            did = True
        except Crash:
            self._restart()
            return True
        except (SyncFailed, OSError):
            self._fail()
            return True
        return self._acknowledge() or did or bool(standby.syncs.pending or self._wire or self._cursor.pending_bytes)

    def _acknowledge(self) -> bool:
        if not self.run.is_sync or self._copy is not None:
            return False
        barrier, applier = self.barrier, self.standby.applier
        is_complete = applier.place.state.is_complete
        if is_complete and barrier.standing in (Standing.ALONE, Standing.WAITING):
            was_alone = barrier.standing is Standing.ALONE
            barrier.joined()
            if barrier.may_be_believed:  # as the reply to the acknowledgement says
                self.standby.left_by = 0
            if was_alone and self.run.may_crash and self.run.disk.crash_in < 0 and self.rng.random() < 0.3:
                self.run.counts["ends right after it was alone"] += 1  # the standby has not heard of that yet
                self._frozen = 200
                self.run.disk.crash_in = self.rng.choice([0, 1, 2, 4])
            elif not was_alone and applier.place.state.in_sync != InSync.NO and self.rng.random() < 0.3:
                self.lose()  # while it joins, and believes that it lacks nothing
            return True
        durable = applier.durable
        if durable > barrier.acknowledged or barrier.standing is Standing.JOINING:
            if self.rng.random() < 0.7:
                try:
                    barrier.heard(durable)
                except OSError:
                    self.run.counts["notes that failed"] += 1
                self.run.counts["in sync"] += barrier.standing is Standing.SYNC
            return True
        if self.rng.random() < 0.3:
            barrier.heard(durable)
        return False

    def receive(self, count: int) -> None:
        """Let so many pieces of what is on its way arrive, or all there are."""
        data = b"".join(self._wire.popleft() for _ in range(min(count, len(self._wire))))
        self.standby.applier.receive(data)

    def deliver_some(self) -> None:
        """The server ends: of what it has sent, some arrives."""
        if self._cursor is not None and not self._cursor.is_cut_off:
            self._wire.extend(self._cursor.take(self.rng.choice([0, 1 << 10, 1 << 30])))
            try:
                self.receive(self.rng.randrange(len(self._wire) + 1))
            except (Crash, DiskFull, SyncFailed, OSError):
                self.run.counts["failures at the end"] += 1

    # --- the end

    @property
    def may_take_over(self) -> bool:
        """Whether the standby may be promoted without a loss, or in an asynchronous run whatever is lost."""
        place = self.standby.applier.place
        if not self.run.is_sync:  # it knows how far it is
            return place.can_resume
        has_all = place.state.is_complete and place.state.in_sync != InSync.NO
        # A standby that was without contact for longer than the server waits for it is not promoted without a loss.
        return has_all and self.barrier.standing is not Standing.ALONE and not self.standby.left_by

    def released(self, mark: int) -> None:
        """Something was confirmed. Now and then the server ends at one of its next calls."""
        self.reported = max(self.reported, mark)
        disk = self.run.disk
        if not self.run.may_crash or disk.crash_in >= 0 or not self.may_take_over:
            return
        is_syncing = bool(self.standby.syncs.pending)
        if self.rng.random() < (0.5 if is_syncing and "power" in self.run.ends else 0.3 if self._is_aimed else 0.02):
            self.run.counts["ends right after an answer"] += 1
            self.run.is_power_aimed = self._is_aimed or is_syncing
            self._is_aimed = False
            self._frozen = 30 if is_syncing else 0
            disk.crash_in = self.rng.choice([0, 0, 1, 2, 4])


class PairRun(Run):
    """See the module's docstring."""

    counts: Counter[str] = Counter()

    def __init__(self, seed: int, *, is_sync: bool = True, **more: Any) -> None:
        self.pair_rng = Random(f"pair {seed}")
        self.is_sync = is_sync
        self.may_crash = False
        self.is_power_aimed = False
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
            self._standby = Standby(NotingDisk(self.pair_rng))
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
        super()._guarded(action)
        self.may_crash = False
        self.disk.doubt_chance = self.disk.eio_chance / 4  # where syncs fail, changes of names do, too

    def power_off(self, crash: Crash | None = None) -> None:
        pair, rng = self.pair, self.pair_rng
        self.crashes += 1
        self.durable.crashed()
        is_power = self.rng.choice(self.ends) == "power"
        if self.is_power_aimed and "power" in self.ends:
            is_power = True
        else:
            pair.deliver_some()
        if pair.may_take_over and rng.random() < 0.8:
            self._fail_over(is_power)
        else:
            self.counts["restarts"] += 1
            if is_power:
                self.disk.crash()
            if rng.random() < 0.3:
                pair.standby.lose_power()
                pair.standby.start()
        self.is_power_aimed = False
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
        self.counts["failovers"] += 1
        disk_recovers(rng, standby.disk)
        standby.disk.crash_in = -1
        position = applier.place.position
        cut = (self.lives[position.life], position.applied) if position is not None else FROM_THE_START
        may_lose_power = not applier.place.state.is_catching_up  # after that it would not be promoted
        if is_power and may_lose_power and (self.is_power_aimed or rng.random() < 0.6):
            self.counts["failovers with both powers cut"] += 1
            # Behind a sync that has failed, nothing of this life has to be there: nobody knows what that sync was for.
            cut = min(cut, (cut[0], 0 if applier.has_failed else applier.durable or cut[1]))
            standby.lose_power()
        elif rng.random() < 0.5:  # its process was killed, too
            standby.start()
        else:
            applier.close()
        Applier(standby.disk, SimSyncs(), Place(standby.disk, b"")).promote()
        if not self.is_sync:
            self._lose_behind(cut)
        self._gap = rng.choice(GAPS)
        old, self.disk = self.disk, standby.disk
        self.disk.caps, old.caps = old.caps, lambda _directory: None
        self.disk.over_cap.clear()
        disk_recovers(rng, old)
        old.aim_at_nothing()
        if rng.random() < 0.5 and not old.hides_loss:  # as if it had handed over
            Place(old, b"").change(is_server=False)
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
