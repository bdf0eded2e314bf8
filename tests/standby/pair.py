"""One life of a simulated server: its stream, the way to its standby, and the standby."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.standby import verifying
from curbstone.standby.applying import DiskFull, SyncFailed
from curbstone.standby.barrier import BarrierState, StandbyBarrier
from curbstone.standby.copying import Copy, digests, tree
from curbstone.standby.frames import InSync, Kind
from curbstone.standby.handover import Handover
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.state_files import server_state_files
from curbstone.standby.stream import Cursor, Stream
from tests.kit.simulated import Crash
from tests.sim.disk_faults import UNLIMITED, disk_recovers
from tests.sim.history import Violation
from tests.standby.machine import Standby

if TYPE_CHECKING:
    from tests.standby.pair_run import PairRun

PATIENCE_MS = 10_000


class Successor:
    """The standby that is to take over from a server, for as long as its connection lasts."""

    name = "the standby"

    def __init__(self, pair: Pair, cursor: Cursor) -> None:
        self.acknowledged = 0
        self._pair = pair
        self._cursor = cursor

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost, or the standby has taken over."""
        return self._pair.cursor is not self._cursor or self._pair.is_handed_over

    def take_over(self) -> None:
        if not self.is_closed:
            self._cursor.add_own(Kind.TAKE_OVER)


class NoEnding:
    """How the simulated server ends: `PairRun` ends it."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def __call__(self, term: int) -> None: ...


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
        self.state_files = server_state_files(run.disk)
        run.disk.crash_in, run.disk.aims_at_names = aim
        self.barrier = StandbyBarrier(
            self.stream,
            lambda: self.clock_ms,
            lambda: None,
            patience_ms=PATIENCE_MS,
            syncs_always=run.sync.kind == "always",
            is_alone=not self.state_files.state.believed or not run.is_sync,
            record_alone=lambda is_alone: self.state_files.change(believed="" if is_alone else "standby"),
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
        self._acknowledged_ms = 0
        """When the standby was connected last."""
        self._is_quiet = False
        """Whether nothing that the server sends arrives, while acknowledgements do."""
        self._frozen = 0
        """For how many steps nothing happens there, so that the end of the server comes before the end of a sync."""

    # --- the connection

    def _connect(self) -> None:
        applier, files = self.standby.applier, self.standby.applier.state_files
        try:
            files.assign(self.state_files.state.server, self.state_files.state.term)
            if not self.barrier.may_be_in_sync:
                files.change(in_sync=InSync.NO)
            if files.can_resume and files.position is not None and files.position.life == self.stream.life:
                position = applier.resume()
                self._cursor = self.stream.resume(position.applied, lambda _is_urgent: None)
            if self.standby.left_by == self.stream.life:
                self.standby.left_by = 0
            if self._cursor is not None:
                self.run.counts["resumed"] += 1
                self._is_quiet = (
                    self.run.is_sync and self.barrier.state is BarrierState.ALONE and self.rng.random() < 0.5
                )
                self._end_soon_after_a_kill()
                return
            is_whole = files.state.wants_full_copy or self.standby.disk.hides_loss
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

    def _end_soon_after_a_kill(self) -> None:
        """The standby has resumed; if it was killed before, have the server end before it is where it was."""
        disk = self.run.disk
        is_right = self._is_aimed and not self.run.is_sync and self.run.may_crash and disk.crash_in < 0
        if is_right and self.rng.random() < 0.5:
            self.run.counts["ends right after it resumed"] += 1
            disk.crash_in = self.rng.choice([1, 2, 4, 8])

    def lose(self) -> None:
        """Lose the connection, with what is on its way."""
        if self._cursor is not None:
            self.run.counts["lost connections"] += 1
            self._acknowledged_ms = self.clock_ms
            self.stream.detach(self._cursor)
        self._cursor = self._copy = None
        self._is_quiet = False
        self._wire.clear()
        if self.run.is_sync:
            self.barrier.standby_lost()

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
        self._is_aimed = self.standby.applier.has_failed  # what that sync should have made durable may be lost
        disk_recovers(self.rng, self.standby.disk)
        self.standby.disk.crash_in = -1
        self.standby.applier.record_failure()
        self.lose()
        self.standby.start()

    @property
    def cursor(self) -> Cursor | None:
        """The place of the standby in the stream; None without a connection."""
        return self._cursor

    @property
    def is_handed_over(self) -> bool:
        """Whether the server has asked the standby to take over, and the standby has received that."""
        return self.standby.applier.state_files.state.in_sync is InSync.HANDED_OVER

    # --- switchover

    def hand_over(self) -> bool:
        """Hand over to the standby, while `step` happens; return whether the server has to end now."""
        if self._cursor is None or self._copy is not None or not self.standby.applier.is_usable:
            return False
        self._frozen = 0
        successor = Successor(self, self._cursor)

        def pause(seconds: float) -> None:
            self.step()
            self.clock_ms += int(seconds * 1000)
            if not successor.is_closed and self.rng.random() < 0.5:
                successor.acknowledged = self.standby.applier.durable

        handover = Handover(
            self.stream,
            self.state_files,
            successor,
            NoEnding(),
            lambda: self.disk.has_failed,
            now_s=lambda: self.clock_ms / 1000,
            pause=pause,
        )
        try:
            handover.run()
        except CurbstoneError:
            self.run.counts["switchovers given up"] += 1
            return False
        self.run.counts["switchovers"] += 1
        return True

    # --- what happens

    def step(self) -> bool:
        """Let something happen on the way to the standby, or there; return False if there was nothing to do."""
        if self._frozen:
            self._frozen -= 1
            return True
        rng = self.rng
        self.clock_ms += rng.choice([0, 0, 1, 20])
        if rng.random() < 0.003:
            self._inject_fault()
        if not self.run.is_sync and self._cursor is not None and rng.random() < 0.01:
            self._catch_up()
        if self.run.is_sync and not self._tick():
            self.run.counts["silences"] += 1
            self.lose()
        is_away = self._cursor is None or not self.standby.applier.is_usable
        if is_away and self.clock_ms - self._acknowledged_ms >= PATIENCE_MS:
            self.standby.left_by = self.stream.life
        elif self.standby.applier.state_files.state.in_sync == InSync.NO:
            self.standby.left_by = 0
        if self._cursor is None:
            if rng.random() < 0.3:
                self._connect()
            elif rng.random() < 0.2:
                self.clock_ms += rng.choice([1000, PATIENCE_MS])
            return True
        if self._copy is None and rng.random() < 0.02:
            self._send_a_block()
        if self._cursor.is_cut_off:
            self.run.counts["cut off"] += 1
            self.lose()
            return True
        if not self.run.is_sync and self._copy is None and rng.random() < 0.01:  # killed while it applies much at once
            self._wire.extend(self._cursor.take(1 << 30))
            self.standby.disk.crash_in = rng.randrange(1, 12)
            return self._advance(receives=1 << 30)
        if rng.random() < (0.01 if self.standby.syncs.pending else 0.002):
            if rng.random() < 0.3:
                self.lose()
            elif rng.random() < 0.3:
                self._restart()
            else:
                self.standby.disk.crash_in = rng.randrange(12)
            return True
        return self._advance()

    def _send_a_block(self) -> None:
        """The server sends a block of any file again, as after a comparison."""
        assert self._cursor is not None
        disk = self.run.disk
        if files := tree(disk)[1]:
            path = self.rng.choice(sorted(files))
            number = self.rng.randrange(max(verifying.blocks_of(files[path]), 1))
            self.run.counts["blocks sent again"] += verifying.send_block(self.stream, disk, self._cursor, path, number)

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
            if applier.state_files.state.is_catching_up:
                applier.caught_up()
            elif applier.is_usable:
                self.run.counts["began to catch up"] += 1
                applier.catch_up()
        except Crash:
            self._restart()
        except (OSError, SyncFailed):
            self._fail()

    def _inject_fault(self) -> None:
        """The standby's disk fails, is full or works again; or time passes in which nobody hears anything."""
        disk, rng = self.standby.disk, self.rng
        what = rng.randrange(8)
        if what < 3 and self.run.faults:
            disk.eio_chance, disk.doubt_chance = rng.choice([(0.2, 0), (0, 0.1), (0.1, 0.1)])
        elif what == 3 and self.run.faults:
            disk.capacity = sum(len(inode.cache) for inode in disk.names.values()) + rng.randrange(4096)
        elif what == 4:
            self.clock_ms += 4000
        else:
            disk_recovers(rng, disk)

    def _advance(self, receives: int = 0) -> bool:
        """Copy, send, apply, sync and acknowledge a little. `receives`: how many pieces have to arrive; 0 for some."""
        rng, standby = self.rng, self.standby
        assert self._cursor is not None
        did = False
        try:
            if self._copy is not None and self._cursor.pending_bytes < 100_000:
                if not self._copy.step():
                    self._copy = None
                did = True
            if not self._is_quiet and rng.random() < self._p_net:
                self._wire.extend(self._cursor.take(1 << rng.randrange(4, 18)))
            if self._wire and (receives or rng.random() < self._p_net):
                self.receive(receives or rng.choice([1, 1, 2, 5, 50]))
                did = True
            else:
                standby.applier.apply_waiting()
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
        except FileNotFoundError as error:
            raise Violation(f"the stream has a change that the standby can't make: {error}") from error
        except (SyncFailed, OSError):
            self._fail()
            return True
        return self._acknowledge() or did or bool(standby.syncs.pending or self._wire or self._cursor.pending_bytes)

    def _acknowledge(self) -> bool:
        if not self.run.is_sync or self._copy is not None:
            return False
        barrier, applier = self.barrier, self.standby.applier
        is_complete = applier.state_files.state.is_complete
        if is_complete and barrier.state in (BarrierState.ALONE, BarrierState.WAITING):
            was_alone = barrier.state is BarrierState.ALONE
            self._is_quiet = False
            barrier.standby_attached()
            if barrier.may_be_in_sync:  # as the reply to the acknowledgement says
                self.standby.left_by = 0
            if was_alone and self.run.may_crash and self.run.disk.crash_in < 0 and self.rng.random() < 0.3:
                self.run.counts["ends right after it was alone"] += 1  # the standby has not heard of that yet
                self._frozen = 200
                self.run.disk.crash_in = self.rng.choice([0, 1, 2, 4])
            elif not was_alone and applier.state_files.state.in_sync != InSync.NO and self.rng.random() < 0.3:
                self.lose()  # while it joins, and believes that it lacks nothing
            return True
        durable = applier.durable
        if durable > barrier.acknowledged or barrier.state is BarrierState.JOINING:
            if self.rng.random() < 0.7:
                try:
                    barrier.acknowledge(durable)
                except OSError:
                    self.run.counts["notes that failed"] += 1
                self.run.counts["in sync"] += barrier.state is BarrierState.SYNC
            return True
        if self.rng.random() < 0.3:
            barrier.acknowledge(durable)
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
        files = self.standby.applier.state_files
        if not self.run.is_sync:  # it knows how far it is
            return files.can_resume
        has_all = files.state.is_complete and files.state.in_sync != InSync.NO
        # A standby that was without contact for longer than the server waits for it is not promoted without a loss.
        return has_all and not self.standby.left_by

    def released(self, mark: int) -> None:
        """Something was confirmed. Now and then the server ends at one of its next calls."""
        self.reported = max(self.reported, mark)
        disk = self.run.disk
        if not self.run.may_crash or disk.crash_in >= 0 or not self.may_take_over:
            return
        is_syncing = bool(self.standby.syncs.pending)
        if self.rng.random() < (0.5 if is_syncing and "power" in self.run.ends else 0.6 if self._is_aimed else 0.02):
            self.run.counts["ends right after an answer"] += 1
            self.run.is_power_aimed = self._is_aimed or is_syncing
            self._is_aimed = False
            self._frozen = 30 if is_syncing else 0
            disk.crash_in = self.rng.choice([0, 0, 1, 2, 4])
