"""The capped log of one queue: a ring of segment files, written a commit at a time.

The log knows files, sizes and the cap; what the batches say is the queue's business. One commit is
under way at a time: the queue asks what fits, hands over encoded batches, and `Commit.run` is what a
worker thread does with them.

Segments form a chain: each names the one before it and where that one ends, so a file left behind by
a failed or undone operation is never part of the log. The oldest are dropped, never others, and only
after a batch is on disk that says so (the floor).

Sizes: the ledger, `room`, counts contents; what a file has been grown beyond its contents, the spare file
kept for recycling and the reserve can be had back at once. `bytes` is what the directory really holds.

A full disk: publishes leave room there for the settles of what is pending, in the tail of the active
segment, and where that is more than `TAIL_BYTES_MAX` in a file of its own, the reserve. A publish that
can't is refused. Then settles use the tail, the reserve and the files of segments that were dropped.

A log may be found above its cap: the server was started with a smaller one. Then it has a limit above
the cap, which leaves room to settle and to clean, and comes down with what the log holds; nothing is
published meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from curbstone.core.log.commit import Commit, Segment, Spare, reserve_path, segment_path
from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES, SegmentHeader, encode_segment_header
from curbstone.core.log.room import Room
from curbstone.core.write_behind import WriteBehindDisk

GROWTH_BYTES_FIRST = 32 * 1024
GROWTH_BYTES_MAX = 4 * 1024 * 1024
HEADROOM_BYTES = 4 * 1024
LARGE_COMMIT_BYTES = 128 * 1024  # writing zeros for the next of its kind costs more than a sync that changes the size
IDLE_BYTES_MAX = 48 * 1024  # with `meta` an idle, empty queue keeps at most 64 KiB
RECYCLE_BYTES_MAX = 64 * 1024 * 1024

SETTLE_BYTES = 128
"""What settling one message takes where it is a commit of its own."""
TAIL_BYTES_MAX = 32 * 1024
RESERVE_BYTES_MAX = 1024 * 1024

Salt = Callable[[], int]


def random_salt() -> int:
    """Return 32 random bits."""
    return secrets.randbits(32)


class Log:
    """See the module's docstring."""

    __slots__ = (
        "_leftover", "_numbers", "_salt", "_sealed_bytes", "_sealed_end_max", "_spare", "_tail_bytes", "_under_way",
        "directory", "disk", "fenced", "floor", "is_held", "next_batch", "reserve", "room", "segments", "tx", "uid",
    )  # fmt: skip

    def __init__(
        self, disk: WriteBehindDisk, directory: str, uid: int, *, cap: int, meta_bytes: int, salt: Salt = random_salt
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.uid = uid
        self.segments: list[Segment] = []
        self.floor = 1
        self.next_batch = 1
        self.tx = 0
        """The last transaction of the broker's journal that is in this log."""
        self.fenced = False
        """A sync or write failed in the active segment: nothing more is written there."""
        self._salt = salt
        self._numbers = 0
        self.room = Room(cap, meta_bytes)
        self._tail_bytes = min(TAIL_BYTES_MAX, self.room.segment_bytes)
        self._under_way: Commit | None = None
        self._spare: Spare | None = None
        self.is_held = False
        """Whether somebody still reads files of the log: then what is dropped is not used again.

        That is looked at when a drop is done, for the commit that drops may have been made before it was held.
        """
        self.reserve = 0
        """Bytes of the reserve."""
        self._leftover: dict[str, int] = {}
        """Files that are no part of the log and could not be removed; the next commit does that first."""
        self._sealed_bytes = 0
        self._sealed_end_max = 0

    # --- sizes

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self.segments[-1]

    @property
    def bytes(self) -> int:
        """Bytes of all segment files, the spare and what could not be removed included."""
        spare = self._spare.size if self._spare else 0
        leftover = sum(self._leftover.values())
        return self._sealed_bytes + self.active.size + spare + self.reserve + leftover + self.room.aside_bytes

    @property
    def is_above_cap(self) -> bool:
        """Whether the directory holds more than its cap."""
        return self.bytes + self.room.meta_bytes > self.room.cap

    @property
    def fullness(self) -> str:
        """What to say of a log that has no room for a publish."""
        held = f"holds {self.bytes} bytes, more than" if self.is_above_cap else "is at"
        return f"{held} its cap of {self.room.cap} bytes"

    @property
    def room_in_active(self) -> int:
        """Bytes that still go into the active segment before the next one begins."""
        return 0 if self.fenced else self.room.segment_bytes - self.segments[-1].end

    @property
    def records_span(self) -> int:
        """Bytes of releases that go well into one batch: what is left of a segment, or half a new one."""
        left = self.room_in_active - 4 * BATCH_BYTES
        return left if left > self.room.segment_bytes // 8 else self.room.segment_bytes // 2

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it. What is allowed above it stays until `come_down`."""
        room = self.room
        excess = max(0, room.cap + room.excess - cap) if self.segments else 0
        room.resize(cap, meta_bytes)
        room.exceed_by(excess)
        self._tail_bytes = min(TAIL_BYTES_MAX, room.segment_bytes)

    def needed(self, *, doubtful: bool = False) -> int:
        """Return the cap that the log as it is needs: for what it holds and has promised, to settle and to clean.

        `doubtful`: also what failed and may be on the disk all the same, where a crash would find it.
        """
        commit, active = self._under_way, self.active
        going = growing = 0
        if commit is not None:
            going = commit.end if commit.rolled else commit.end - active.end
            growing = commit.size if commit.rolled else commit.size - active.size
            growing += commit.reserve_to - self.reserve
        largest = max(self._sealed_end_max, active.end, commit.end if commit is not None else 0)
        if doubtful:
            left = [*self._leftover.values(), active.size if self.fenced else 0]
            going += sum(left)
            largest = max(largest, *left)
        room = self.room
        wanted = room.held + going + room.to_clean(largest) + room.promised
        return room.meta_bytes + max(wanted, self.bytes + growing)

    def needed_under(self, cap: int, meta_bytes: int) -> int:
        """Return what `needed` would say with another cap."""
        before = self.room.cap, self.room.meta_bytes, self.room.excess
        self.resize(cap, meta_bytes)
        needed = self.needed(doubtful=True)
        self.resize(*before[:2])
        self.room.exceed_by(before[2])
        return needed

    def exceed(self) -> None:
        """Go above the cap, as far as the log needs it."""
        self.room.exceed_by(max(self.room.excess, self.needed() - self.room.cap))

    def come_down(self) -> None:
        """Give back what is not needed above the cap."""
        self.room.exceed_by(max(0, min(self.room.excess, self.needed() - self.room.cap)))

    # --- commits

    @property
    def is_dropping(self) -> bool:
        """Whether a commit is under way that drops segments: their files may be gone that the log still has."""
        return self._under_way is not None and bool(self._under_way.dropped)

    def create(self, next_seq: int, number: int = 1) -> None:
        """Make the first segment of a new log; blocking."""
        assert not self.segments
        self._numbers = number
        header = SegmentHeader(self._salt(), self.uid, number, 0, 0, self.floor, next_seq, self.next_batch, self.tx)
        path = segment_path(self.directory, number)
        file = self.disk.open_lasting(path, create=True)
        file.write(0, [encode_segment_header(header).ljust(GROWTH_BYTES_FIRST, b"\0")])
        file.sync()
        self.segments.append(Segment(number, path, header.salt, SEGMENT_BYTES, GROWTH_BYTES_FIRST, file))
        self._count_sealed()

    def recovered(self, segments: list[Segment], newest_number: int) -> None:
        """Take over what recovery found; the last segment becomes the active one."""
        self.segments = segments
        self._numbers = newest_number
        self._count_sealed()

    def _count_sealed(self) -> None:
        """Add up the segments before the active one; they change no more."""
        sealed = self.segments[:-1]
        self._sealed_bytes = sum([segment.size for segment in sealed])
        self._sealed_end_max = max([segment.end for segment in sealed], default=0)
        self.room.holds(self._sealed_bytes, self._sealed_end_max, self.active.end)

    def has_file_for(self, size: int) -> bool:
        """Return whether a new segment of `size` bytes takes no room on the disk, unlike in the active one."""
        spare = max(self.reserve, self._spare.size if self._spare else 0)
        return self.active.end + size > self.active.size and SEGMENT_BYTES + size <= spare

    def begin(self, *, sync: bool, roll: bool, next_seq: int, recycle: bool, is_full: bool) -> Commit:
        """Start a commit, in a new segment if `roll` or if the active one is fenced; in the spare file if `recycle`.

        If the disk is full the reserve will do, too.
        """
        commit = Commit(self.disk, self.directory, self.uid, self.segments[-1], self.reserve, sync=sync)
        commit.erases = not recycle
        for path, size in self._leftover.items():
            commit.remove_first(path, size)
        if roll or self.fenced:
            self._numbers += 1
            old = self.active
            numbers = (self._numbers, old.number, old.end, self.floor)
            header = SegmentHeader(self._salt(), self.uid, *numbers, next_seq, self.next_batch, self.tx)
            spare = self._take_spare(recycle, is_full)
            commit.roll(header, spare, self.reserve, fenced=self.fenced)
        return commit

    def _take_spare(self, recycle: bool, is_full: bool) -> Spare | None:
        spare = self._spare if recycle else None
        if is_full and self.reserve > (spare.size if spare else 0):
            spare, self.reserve = Spare(reserve_path(self.directory), self.reserve), 0
        elif spare is not None:
            self._spare = None
        return spare

    def finish(self, commit: Commit, drops: int, pending: int | None, missed: int = 0) -> None:
        """Complete a commit: drop the `drops` oldest segments with it, and prepare the file ahead.

        Room is kept on the disk to settle `pending` messages one by one; None is for a full disk, where nothing
        is prepared and what was prepared is used. `missed` bytes more are to show that there is room again.
        """
        if drops:
            self._drop(commit, self.segments[:drops])
        if commit.erases:
            self._erase(commit, keeps_reserve=bool(pending))
        settles = (pending or 0) * SETTLE_BYTES
        tail = min(settles, self._tail_bytes) + missed
        if commit.size - commit.end < HEADROOM_BYTES + tail or commit.rolled:
            self._prepare(commit, None if pending is None else tail)
        if settles > tail:
            self._keep_reserve(commit, settles - tail)
        self._under_way = commit

    def _drop(self, commit: Commit, dropped: list[Segment]) -> None:
        commit.dropped = dropped
        if not commit.erases:
            commit.kept = self._worth_keeping(dropped)
        for segment in dropped:
            if segment.damaged:
                commit.set_aside(segment.path)
            elif segment is not commit.kept:
                commit.remove_last(segment.path)

    def _erase(self, commit: Commit, *, keeps_reserve: bool) -> None:
        if self._spare:
            commit.remove_first(self._spare.path, self._spare.size)
            self._spare = None
        if self.reserve and not keeps_reserve:
            self.reserve = 0
            commit.give_up_reserve()

    def _file_room(self) -> int:
        """Return how large the active segment's file may be at most, or that of a new one once this is cut."""
        others = self.bytes - self.active.size - sum(self._leftover.values())
        return self.room.cap - self.room.meta_bytes - others

    def _prepare(self, commit: Commit, tail: int | None) -> None:
        """Grow the commit's file past its end, as far as the cap allows: at best to leave a tail, for settles."""
        room = self._file_room() - (self.active.end if commit.rolled else 0)
        if (room < commit.end or self.room.excess) and self._spare:
            commit.remove_first(self._spare.path, self._spare.size)
            room += self._spare.size
            self._spare = None
        if room < commit.end and self.reserve:
            room += self.reserve
            self.reserve = 0
            commit.give_up_reserve()
        wanted = least = commit.end + (tail or 0)
        if tail is not None and commit.size - least < HEADROOM_BYTES:
            is_large = commit.added >= LARGE_COMMIT_BYTES
            growth = 0 if is_large else min(max(GROWTH_BYTES_FIRST, commit.size), GROWTH_BYTES_MAX)
            most = self.room.segment_bytes + (self._tail_bytes + HEADROOM_BYTES if tail else 0)
            wanted = max(min(commit.size + growth, most), least)
        size = max(commit.end, commit.size, min(wanted, room))
        prepared = self.active.size - self.active.end
        if commit.rolled and (tail is None or size > room - prepared):
            if tail is None or room - prepared < max(least, commit.size):
                commit.cut_first()
            else:
                size = room - prepared
        commit.grow_to(size, min(least, size))
        missing = commit.size - room - self.room.excess
        if missing > 0:  # only where the cap was made smaller than what the log needs to go on: then that comes first
            self.room.exceed_by(self.room.excess + missing)

    def _keep_reserve(self, commit: Commit, settles: int) -> None:
        """Have a reserve for so many bytes of settles, as far as the cap allows; it grows in large steps."""
        steps = max(1 << (settles - 1).bit_length(), GROWTH_BYTES_FIRST)
        size = min(steps, self.room.segment_bytes, RESERVE_BYTES_MAX)
        if size > self.reserve:
            taken = commit.size + (self.active.size if commit.rolled else 0)
            if self._file_room() + self.reserve - taken >= size:
                commit.grow_reserve(size)

    def _worth_keeping(self, dropped: list[Segment]) -> Segment | None:
        """Return a dropped segment whose file is worth keeping for the next roll."""
        if self._spare is not None or self.room.excess or self.is_held:
            return None
        least = self.room.segment_bytes // 2
        return next((s for s in dropped if not s.damaged and least <= s.size <= RECYCLE_BYTES_MAX), None)

    def succeeded(self, commit: Commit) -> None:
        """Take a commit that is on disk into the log."""
        self._under_way = None
        self._leftover = {}
        self.reserve = commit.reserve
        if commit.rolled:
            self.active.size = commit.old_size
            self.fenced = False
            self.segments.append(commit.segment)
            old = self.segments[-2]
            old.redo = 0 if not commit.is_doubtful else old.redo
        commit.segment.end = commit.end
        commit.segment.size = commit.size
        if commit.syncs and not commit.redo:
            commit.segment.redo = 0
        if commit.rolled:
            self._count_sealed()
        else:
            self.room.ends(commit.end)

    def let_go(self, commit: Commit) -> None:
        """Take out the segments that a commit has dropped which is on disk: nothing of them is live any more."""
        for segment in commit.dropped:
            assert self.segments[0] is segment and segment.runs == 0 and segment.states == 0
            del self.segments[0]
            if segment.damaged:
                self.room.set_aside(segment.size)
            elif segment is commit.kept and not self.is_held:
                self._spare = Spare(segment.path, segment.size)
            elif segment is commit.kept or segment.path in commit.unremoved:
                self._leftover[segment.path] = segment.size
        self.floor = self.segments[0].number
        self._count_sealed()

    def abandon(self) -> None:
        """The queue broke down: what becomes of the commit under way is of no interest."""
        self._under_way = None

    def failed(self, commit: Commit) -> None:
        """Leave the log at its last good batch; the next commit begins a new segment unless this one was undone.

        Whatever became of a new file, it is not in the chain: the next segment names the old one.
        """
        self._under_way = None
        self._leftover = commit.files_touched()  # it had all those of before to remove
        self.reserve = commit.reserve
        if commit.rolled:
            self.active.size = commit.old_size
            if commit.segment.file is not None:
                commit.segment.file.close()
        elif not commit.is_undone:
            self.active.size = max(self.active.size, commit.size)
        if not commit.is_undone:
            self.fenced = True
        elif commit.taken is not None and commit.taken.path == reserve_path(self.directory):
            self.reserve = commit.taken.size
        elif commit.taken is not None:
            self._spare = commit.taken

    def close(self) -> None:
        """Close the file; nothing is synced."""
        if self.segments and self.active.file is not None:
            self.active.file.close()
            self.active.file = None
