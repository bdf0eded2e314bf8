"""A simulated disk that notes which of its faults took effect: in which functions of the engine, and on which files.

A fault that is asked for is no fault yet: a sync fails only if something is synced, and a power cut tears a write only
if one was not synced. `tests.sim.states` has the list of what has to happen.
"""

from __future__ import annotations

import sys
from random import Random
from types import FrameType, TracebackType

from tests.kit.inode import Inode
from tests.kit.simulated import Crash, SimDisk

CRASH, FAILED_SYNC, FULL, DOUBT = "a crash", "a failed sync", "a full disk", "a failed change"
TORN, UNDONE, LOST, BACK = "torn", "undone", "lost", "back"

Stack = tuple[str, frozenset[str]]
"""A fault, and the functions that were under way when it took effect."""
Effect = tuple[str, str]
"""What a power cut has done to the file of a path."""


class RecordingDisk(SimDisk):
    """See the module's docstring."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.stacks: set[Stack] = set()
        self.effects: set[Effect] = set()
        """What the last power cut has done."""
        self.aims_at_names = False
        """Whether the crash comes before names of files are synced next."""

    def aim(self, rng: Random, most: int) -> None:
        """Have the next crash come soon: before names are synced, behind a write, or at one of `most` calls."""
        self.aims_at_names = rng.random() < 0.2
        self.crash_in = -1 if self.aims_at_names else rng.choice([1, rng.randrange(most)])

    def aim_at_nothing(self) -> None:
        self.aims_at_names = False
        self.crash_in = -1

    def crashed(self, traceback: TracebackType | None) -> None:
        """A crash came where this traceback says."""
        names = []
        while traceback is not None:
            names.append(traceback.tb_frame.f_code.co_qualname)
            traceback = traceback.tb_next
        self.stacks.add((CRASH, frozenset(names)))

    def _note(self, fault: str) -> None:
        names = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_qualname != "Run.run":
            names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        self.stacks.add((fault, frozenset(names)))

    def sync_fails(self) -> bool:
        fails = super().sync_fails()
        if fails:
            self._note(FAILED_SYNC)
        return fails

    def room_for(self, inode: Inode, end: int) -> bool:
        fits = super().room_for(inode, end)
        if not fits:
            self._note(FULL)
        return fits

    def change_fails(self) -> bool:
        fails = super().change_fails()
        if fails:
            self._note(DOUBT)
        return fails

    def sync_dir(self, path: str) -> None:
        if self.aims_at_names:
            self.aims_at_names = False
            raise Crash
        super().sync_dir(path)

    def crash(self) -> None:
        unsynced = [(path, inode, bytes(inode.durable)) for path, inode in self.names.items() if inode.pending]
        before = {path: inode.cache for path, inode in self.names.items()}
        super().crash()
        effects = self.effects = set()
        for path, inode, durable in unsynced:
            if inode.durable == durable:
                effects.add((UNDONE, path))
            elif inode.durable != inode.cache:
                effects.add((TORN, path))
        effects |= {(LOST, path) for path in before.keys() - self.names.keys()}
        effects |= {(BACK, path) for path in self.names.keys() - before.keys()}
