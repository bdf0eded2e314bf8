"""Bugs to plant in the second copy. The simulated pair has to find each of them.

python -m tests.standby.plants NAME [HISTORIES]
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from curbstone.core.disk import Disk
from curbstone.standby import applying, verifying
from curbstone.standby.applying import Applier
from curbstone.standby.barrier import BarrierState, StandbyBarrier
from curbstone.standby.copying import BLOCK_BYTES, Copy
from curbstone.standby.frames import Frame, Kind
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.state_files import Position
from curbstone.standby.stream import Stream
from curbstone.standby.verifying import Receiver
from tests.standby.pair_run import PairRun, simulate

Patch = pytest.MonkeyPatch


class PlantedBug(NamedTuple):
    """A bug, and the runs that show it."""

    plant: Callable[[Patch], None]
    is_sync: bool = True


def _ignore(patch: Patch, owner: object, name: str) -> None:
    patch.setattr(owner, name, lambda *_args, **_more: None)


def _ignore_frame(patch: Patch, kind: Kind) -> None:
    patch.setitem(applying._APPLY, kind, lambda _applier, _frame: None)


def _need_of_syncs(patch: Patch) -> None:
    original = Stream.add

    def add(self: Stream, kind: Kind, *args: Any, **more: Any) -> None:
        before = self.required_position
        original(self, kind, *args, **more)
        if kind is not Kind.BEGIN:
            self._of_thread.required_position = before

    patch.setattr(Stream, "add", add)


def _paths_do_not_follow(patch: Patch) -> None:
    def rename(self: ShippingDisk, old: str, new: str) -> None:
        self.inner.rename(old, new)
        self.stream.renamed(old, new)

    patch.setattr(ShippingDisk, "_rename", rename)


def _block_added_later(patch: Patch) -> None:
    """A block is read, and added when the next one is read."""
    original = Copy.step

    def step(self: Copy) -> bool:
        held = self.__dict__.pop("held", None)
        if held is not None:
            self.cursor.add_own(Kind.COPY_DATA, held[0], held[1], payload=held[2])
        add = self.cursor.add_own

        def hold(kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: Any = (), flag: int = 0) -> None:
            if kind is Kind.COPY_DATA:
                self.__dict__["held"] = path, a, payload
            else:
                add(kind, path, a, b, payload, flag)

        self.cursor.add_own = hold  # type: ignore[method-assign]
        try:
            return original(self)
        finally:
            del self.cursor.add_own

    patch.setattr(Copy, "step", step)


def _block_sent_later(patch: Patch) -> None:
    """A block that is sent again is read, and added when the next one is."""
    held: list[tuple[Receiver, str, int, bytes]] = []

    def send(_stream: Stream, disk: Disk, to: Receiver, path: str, number: int) -> bool:
        while held:
            cursor, name, offset, data = held.pop()
            if cursor is to:
                to.add_own(Kind.COPY_DATA, name, offset, payload=[data])
        offset = number * BLOCK_BYTES
        file = disk.open(path)
        held.append((to, path, offset, file.read(offset, BLOCK_BYTES)))
        file.close()
        return True

    patch.setattr(verifying, "send_block", send)


def _unlisted_kept(patch: Patch) -> None:
    original = Applier._end_list

    def end_list(self: Applier, frame: Frame) -> None:
        with pytest.MonkeyPatch.context() as inner:
            _ignore(inner, self._disk, "remove")
            _ignore(inner, self._disk, "remove_tree")
            original(self, frame)

    patch.setitem(applying._APPLY, Kind.COPY_LISTED, end_list)


def _failed_changes_ignored(patch: Patch) -> None:
    _ignore(patch, ShippingDisk, "on_error")
    _ignore(patch, Stream, "invalidate")


def _no_sync_at_a_start(patch: Patch) -> None:
    original = Applier.resume

    def resume(self: Applier) -> Position:
        with pytest.MonkeyPatch.context() as inner:
            _ignore(inner, self, "_sync_now")
            return original(self)

    patch.setattr(Applier, "resume", resume)


def _applied_twice(patch: Patch) -> None:
    """It is noted what is applied, and not what may be."""
    original = Applier._save_position
    patch.setattr(Applier, "_save_position", lambda self, applied, _at_most: original(self, applied, applied))


def _stale_files(patch: Patch) -> None:
    original = Applier._close_files
    patch.setattr(Applier, "_close_files", lambda self, path: None if path else original(self, path))


def _copy_counts_at_once(patch: Patch) -> None:
    """The position of a copy counts as acknowledged before the copy has begun."""
    original = Applier.begin

    def begin(self: Applier, life: int, position: int) -> None:
        original(self, life, position)
        self._is_copying = False

    patch.setattr(Applier, "begin", begin)


def _copy_stays_complete(patch: Patch) -> None:
    original = Applier._begin_copy

    def begin_copy(self: Applier, frame: Frame) -> None:
        state = self.state_files.state
        original(self, frame)
        self.state_files.state = state

    patch.setitem(applying._APPLY, Kind.COPY_BEGIN, begin_copy)


def _starts_alone(patch: Patch) -> None:
    original = StandbyBarrier.__init__

    def init(self: StandbyBarrier, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        self.state = BarrierState.ALONE

    patch.setattr(StandbyBarrier, "__init__", init)


def _lost_while_joining(patch: Patch) -> None:
    original = StandbyBarrier.standby_lost

    def lost(self: StandbyBarrier) -> None:
        if self.state is BarrierState.JOINING:
            self.state = BarrierState.ALONE
        original(self)

    patch.setattr(StandbyBarrier, "standby_lost", lost)


def _belief_not_taken_back(patch: Patch) -> None:
    believed = property(lambda self: True, lambda self, value: None)
    patch.setattr(StandbyBarrier, "may_be_in_sync", believed, raising=False)


def _caught_up_not_noted(patch: Patch) -> None:
    """It applies without syncs, and takes every position for durable."""
    original = Applier.catch_up

    def catch_up(self: Applier) -> None:
        original(self)
        self.state_files.change(is_catching_up=False)
        patch.setattr(self, "_begin_sync", lambda _frame: None)

    patch.setattr(Applier, "catch_up", catch_up)
    patch.setitem(applying._APPLY, Kind.BEGIN, lambda applier, frame: applier._begin_sync(frame))


def _resumes_anywhere(patch: Patch) -> None:
    original = Stream.resume

    def resume(self: Stream, position: int, wake: Any) -> Any:
        return original(self, max(position, self._first), wake)

    patch.setattr(Stream, "resume", resume)


def _failed_sync_forgotten(patch: Patch) -> None:
    _ignore(patch, Applier, "record_failure")


def _zeros_left_out(patch: Patch) -> None:
    original = Applier._write
    patch.setitem(applying._APPLY, Kind.WRITE, lambda applier, frame: original(applier, frame._replace(b=0)))


# Two bugs are not here, because no history can show them; other rules keep what they break.
#
# "The server does not note that it is alone", durably: the note is for the next start only, and without it that start
# is more careful than it has to be, and waits for the copy that was in sync. That copy can't take over by what it
# believes, either: each start begins another life, so the copy is compared, and the first frame of a comparison takes
# back what it believed. The opposite bug is "a start confirms alone".
#
# "In sync as soon as it joins", without a mark: STATE then is in the stream early, but still behind the end of each
# sync of what the server has confirmed alone. A standby makes its own sync before it applies what is behind such an
# end, so when it applies STATE it has all of that on its disk.
PLANTED_BUGS: dict[str, PlantedBug] = {
    "confirms do not wait": PlantedBug(lambda patch: patch.setattr(StandbyBarrier, "allows", lambda self, mark: True)),
    "what is applied is acknowledged": PlantedBug(
        lambda patch: patch.setattr(Applier, "durable", property(lambda self: self.applied))
    ),
    "only syncs have to be acknowledged": PlantedBug(_need_of_syncs),
    "open files keep their first name": PlantedBug(_paths_do_not_follow, is_sync=False),
    "a block is added later than it is read": PlantedBug(_block_added_later, is_sync=False),
    "a block is sent again later than it is read": PlantedBug(_block_sent_later),
    "a copy does not see what is removed": PlantedBug(lambda patch: _ignore(patch, Copy, "_removed"), is_sync=False),
    "a copy does not see what is renamed": PlantedBug(lambda patch: _ignore(patch, Copy, "_renamed"), is_sync=False),
    "what is not listed is kept": PlantedBug(_unlisted_kept),
    "the end of a sync holds nothing back": PlantedBug(lambda patch: _ignore_frame(patch, Kind.END), is_sync=False),
    "a failed change breaks nothing off": PlantedBug(_failed_changes_ignored),
    "a start syncs nothing": PlantedBug(_no_sync_at_a_start),
    "frames are applied twice": PlantedBug(_applied_twice, is_sync=False),
    "files stay open under a name that others get": PlantedBug(_stale_files, is_sync=False),
    "a copy counts before it begins": PlantedBug(_copy_counts_at_once, is_sync=False),
    "half a copy is complete": PlantedBug(_copy_stays_complete),
    "a start confirms alone": PlantedBug(_starts_alone),
    "a connection lost while joining confirms alone": PlantedBug(_lost_while_joining),
    "a standby believes for good that it lacks nothing": PlantedBug(_belief_not_taken_back),
    "that a copy catches up is not noted": PlantedBug(_caught_up_not_noted, is_sync=False),
    "it resumes where the stream is not kept": PlantedBug(_resumes_anywhere),
    "a failed sync is forgotten": PlantedBug(_failed_sync_forgotten),
    "zeros behind a write are left out": PlantedBug(_zeros_left_out, is_sync=False),
}


def histories_until_found(name: str, most: int, seed: int = 0) -> int | None:
    """Plant a bug; return how many histories it took to find it, or None."""
    plant, is_sync = PLANTED_BUGS[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for step in range(most):
            try:
                simulate(seed + step, is_sync=is_sync, step=step)
            except Exception:
                return step + 1
    return None


def main() -> None:
    logging.disable(logging.CRITICAL)
    PairRun.counts.clear()
    name = sys.argv[1]
    found = histories_until_found(name, int(sys.argv[2]) if len(sys.argv) > 2 else 300)
    print(f"{name}: {found} histories, {PairRun.counts['failovers']} failovers", flush=True)


if __name__ == "__main__":
    main()
