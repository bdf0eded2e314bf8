"""A simulated standby: its process and its machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from curbstone.standby.applying import Applier, run_sync
from curbstone.standby.state_files import StateFiles
from tests.sim.disk_faults import disk_recovers
from tests.sim.recording_disk import RecordingDisk

BOOTS = count()
"""The names of all runs of all machines: none comes twice."""


class SimSyncs:
    """Syncs of the standby that end at any time, in any order. Implements `applying.Syncs`."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []

    def start(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        def finish() -> None:
            if finish in self.pending:
                self.pending.remove(finish)
                run_sync(job, done)

        self.pending.append(finish)
        return finish


class Standby:
    """A standby: a process that may be killed, on a machine that may lose its power."""

    def __init__(self, disk: RecordingDisk) -> None:
        self.disk = disk
        self._boot = next(BOOTS)
        self.left_by = 0
        """The life that may have confirmed alone since the standby was connected; 0 for none."""
        self.start()

    def start(self) -> None:
        """Start its process, again on a disk that works if that fails."""
        self.disk.aim_at_nothing()
        self.syncs = SimSyncs()
        try:
            files = StateFiles(self.disk, b"boot %d" % self._boot)
        except OSError:
            disk_recovers(self.disk.rng, self.disk)
            files = StateFiles(self.disk, b"boot %d" % self._boot)
        self.applier = Applier(self.disk, self.syncs, files)

    def lose_power(self) -> None:
        """Its machine forgets what was not synced."""
        self._boot = next(BOOTS)
        self.disk.crash()
