"""The capped log of one queue: a ring of segment files, written a commit at a time.

The log is concerned with files, sizes and the cap. It does not look into batches: their contents belong to the queue.
One commit is under way at a time: the queue asks what fits and passes encoded batches, and a worker thread writes them
in `Commit.run`.

Segments form a chain: each names the one before it and where that one ends. So a file that a failed or undone
operation has left behind is never part of the log. Only the oldest segments are dropped, and each only after a batch
that says so (the new start of the log) is on disk.

Sizes: the ledger, `room`, counts contents. It does not count the prepared bytes behind the contents of a file, the
spare file that is kept for recycling, and the reserve, because these can be given up at once. `bytes` is what the
directory really holds.

A full disk: a publish must leave room on the disk for the settles of all pending messages. That room is in the tail of
the active segment, and, beyond `TAIL_BYTES_MAX`, in a file of its own, the reserve. A publish that can't leave it is
refused. On a full disk, settles use the tail, the reserve and the files of dropped segments.

A log can be found above its cap, if the server was started with a smaller one. Then it gets a limit above the cap
that leaves room to settle and to clean. The limit comes down with what the log holds, and until it has reached the cap
nothing is published.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial

from curbstone.core.engine.log.commit import Commit, Segment, Spare, reserve_path, segment_path
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES, SegmentHeader, encode_segment_header
from curbstone.core.engine.log.room import Room
from curbstone.core.host import Host
from curbstone.core.write_behind import WriteBehindDisk

GROWTH_BYTES_FIRST = 32 * 1024
GROWTH_BYTES_MAX = 4 * 1024 * 1024
HEADROOM_BYTES = 4 * 1024
LARGE_COMMIT_BYTES = 128 * 1024  # for so large a commit, zeros ahead cost more than a sync that changes the size
IDLE_BYTES_MAX = 48 * 1024  # with `meta` an idle, empty queue keeps at most 64 KiB
RECYCLE_BYTES_MAX = 64 * 1024 * 1024

SETTLE_BYTES = 128
"""What settling one message takes in a commit of its own."""
TAIL_BYTES_MAX = 32 * 1024

Salt = Callable[[], int]


def random_salt() -> int:
    return secrets.randbits(32)


class Log:
    __slots__ = (
        "_after_drop", "_last_number", "_leftover", "_pins", "_salt", "_sealed_bytes", "_spare", "_tail_bytes",
        "_uncut", "_under_way", "_undurable_bytes", "directory", "disk", "fenced", "log_start", "next_batch",
        "reserve", "room", "segments", "tx", "uid",
    )  # fmt: skip

    def __init__(
        self, disk: WriteBehindDisk, directory: str, uid: int, *, cap: int, meta_bytes: int, salt: Salt = random_salt
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.uid = uid
        self.segments: list[Segment] = []
        self.log_start = 1
        self.next_batch = 1
        self.tx = 0
        """The last transaction of the broker's journal that is in this log."""
        self.fenced = False
        """Whether a sync or write has failed in the active segment. Then nothing more is written there."""
        self._salt = salt
        self._uncut: list[Segment] = []
        """Segments that could not be cut to their contents in this run of the server. Others may be damaged."""
        self._last_number = 0
        """The highest number that a segment of this queue has had."""
        self.room = Room(cap, meta_bytes)
        self._tail_bytes = min(TAIL_BYTES_MAX, self.room.ample_bytes)
        self._under_way: Commit | None = None
        self._after_drop: tuple[Callable[[], object], ...] = ()
        """What to call when the commit under way, which drops segments, has ended."""
        self._spare: Spare | None = None
        self._pins = 0
        """How many calls of `pin` no `unpin` has ended yet."""
        self.reserve = 0
        """Bytes of the reserve."""
        self._leftover: dict[str, int] = {}
        """Files, with sizes, that are no part of the log and could not be removed. The next commit begins with that."""
        self._undurable_bytes = 0
        """Bytes of removed files that a power cut may bring back."""
        self._sealed_bytes = 0

    # --- who reads its files meanwhile

    def pin(self) -> None:
        """Keep the files of dropped segments from being reused until `unpin`, for a reader such as a backup.

        Several readers may pin the log at once. Each calls `unpin` exactly once for its own `pin`.
        """
        self._pins += 1

    def unpin(self) -> None:
        assert self._pins > 0
        self._pins -= 1

    @property
    def is_pinned(self) -> bool:
        """Whether a reader has pinned the log. This can change between a commit that drops segments and its end."""
        return self._pins > 0

    # --- sizes

    @property
    def active(self) -> Segment:
        """The newest segment, the only one that is written to."""
        return self.segments[-1]

    @property
    def bytes(self) -> int:
        """Bytes of all files: segments, the spare, the reserve, left-overs, and damaged segments that are set aside."""
        spare = self._spare.size if self._spare else 0
        leftover = sum(self._leftover.values())
        return self._sealed_bytes + self.active.size + spare + self.reserve + leftover + self.room.aside_bytes

    @property
    def is_above_cap(self) -> bool:
        return self.bytes + self.room.meta_bytes > self.room.cap

    @property
    def fullness(self) -> str:
        """How full the log is, to follow the queue's name in the refusal of a publish."""
        held = f"holds {self.bytes} bytes, more than" if self.is_above_cap else "has too little room left under"
        return f"{held} its cap of {self.room.cap} bytes"

    @property
    def room_in_active(self) -> int:
        """Bytes that may still be added to the active segment before a new one begins."""
        return 0 if self.fenced else self.room.segment_bytes - self.segments[-1].end

    @property
    def records_span(self) -> int:
        """How many bytes of releases to put into one batch: what is left of the active segment, or half a new one."""
        left = self.room_in_active - 4 * BATCH_BYTES
        return left if left > self.room.segment_bytes // 8 else self.room.segment_bytes // 2

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it. The limit above the cap stays until `lower_excess`."""
        room = self.room
        excess = max(0, room.cap + room.excess - cap) if self.segments else 0
        room.resize(cap, meta_bytes)
        room.exceed_by(excess)
        self._tail_bytes = min(TAIL_BYTES_MAX, room.ample_bytes)

    def needed_under(self, cap: int, meta_bytes: int) -> int:
        """Return how large the cap would have to be if it were this one, with writes that failed."""
        return self._needed(self.room.under(cap, meta_bytes), doubtful=True)

    def _needed(self, room: Room, *, doubtful: bool = False) -> int:
        """Return how large the cap has to be for what the log holds and has promised, and to settle and to clean.

        With `doubtful` this includes writes that failed: they may be on the disk all the same, and a crash would find
        them there.
        """
        commit, active = self._under_way, self.active
        going = growing = 0
        if commit is not None:
            going = commit.end if commit.rolled else commit.end - active.end
            growing = commit.size if commit.rolled else commit.size - active.size
            growing += commit.reserve_to - self.reserve
        largest = max(room.sealed_end_max, active.end, commit.end if commit is not None else 0)
        if doubtful:
            left = [*self._leftover.values(), active.size if self.fenced else 0]
            going += sum(left)
            largest = max(largest, *left)
        wanted = room.held + going + room.to_clean(largest) + room.split_bytes + room.promised
        return room.meta_bytes + max(wanted, self.bytes + growing)

    def exceed(self) -> None:
        """Raise the limit above the cap as far as the log needs."""
        self.room.exceed_by(max(self.room.excess, self._needed(self.room) - self.room.cap))

    def lower_excess(self) -> None:
        """Lower the limit above the cap to what the log needs."""
        self.room.exceed_by(max(0, min(self.room.excess, self._needed(self.room) - self.room.cap)))

    # --- commits

    def retry_after_drop(self, host: Host, again: Callable[[], object]) -> bool:
        """Return whether it is too early to judge a read that failed; then `again` is called when it is not.

        A commit that drops the oldest segment removes the file on a worker thread. The log and the index learn of it
        only when the commit has ended. Until then they may name a file that is gone, and a failed read does not mean
        damage.
        """
        if self._under_way is None or not self._under_way.dropped:
            return False
        self._after_drop += (partial(host.call_later, 0, again),)
        return True

    def commit_ended(self) -> None:
        """No commit is under way any more: call the readers that wait for that."""
        self._under_way = None
        waiting, self._after_drop = self._after_drop, ()
        for again in waiting:
            again()

    def create(self, next_seq: int, number: int = 1) -> Segment:
        """Write the file of the first segment of a new log, and return the segment for `recovered`; blocking."""
        assert not self.segments
        header = SegmentHeader(self._salt(), self.uid, number, 0, 0, self.log_start, next_seq, self.next_batch, self.tx)
        path = segment_path(self.directory, number)
        file = self.disk.open_lasting(path, create=True)
        file.write(0, [encode_segment_header(header).ljust(GROWTH_BYTES_FIRST, b"\0")])
        file.sync()
        return Segment(number, path, header.salt, SEGMENT_BYTES, GROWTH_BYTES_FIRST, file)

    def recovered(self, segments: list[Segment], newest_number: int) -> None:
        """Take over what recovery found, or `create` has made; the last segment becomes the active one."""
        self.segments = segments
        self._last_number = newest_number
        self._count_sealed()

    def _count_sealed(self) -> None:
        """Add up the segments before the active one, which do not change any more, and update the ledger."""
        sealed = self.segments[:-1]
        self._sealed_bytes = sum([segment.size for segment in sealed])
        ends = [segment.end for segment in sealed]
        self.room.holds(self._sealed_bytes, ends, self.active.end)

    def has_file_for(self, size: int) -> bool:
        """Return whether a batch of `size` bytes takes room on the disk in the active segment, but not in a new one.

        A new segment can be put into the spare file or the reserve.
        """
        spare = max(self.reserve, self._spare.size if self._spare else 0)
        return self.active.end + size > self.active.size and SEGMENT_BYTES + size <= spare

    def begin(self, *, sync: bool, roll: bool, next_seq: int, recycle: bool, is_full: bool) -> Commit:
        """Start a commit, in a new segment if `roll` or if the active one is fenced.

        With `recycle` a new segment may be put into the spare file, and on a full disk (`is_full`) into the reserve.
        Without `recycle` the commit erases: what it removes must not return after a crash.
        """
        commit = Commit(self.disk, self.directory, self.uid, self.segments[-1], self.reserve, sync=sync)
        commit.erases = not recycle
        for path, size in self._leftover.items():
            commit.remove_first(path, size)
        if roll or self.fenced:
            self._last_number += 1
            old = self.active
            numbers = (self._last_number, old.number, old.end, self.log_start)
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

        Room is kept on the disk to settle `pending` messages one by one. `pending` is None while the disk is full:
        then nothing is prepared, and what was prepared before is used up. `missed` bytes of room are taken on top, so
        that after a full disk the commit succeeds only if there is room again for the one that failed.
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
        if self._undurable_bytes:
            most = self.room.cap + self.room.excess - self.room.meta_bytes
            if self._most_bytes(commit) + self._undurable_bytes > most:
                commit.sync_names_first()
        self._under_way = commit

    def _most_bytes(self, commit: Commit) -> int:
        """Return how many bytes all files have when a commit is written; 0 if it makes no file grow."""
        growth = commit.size if commit.rolled else commit.size - self.active.size
        growth += commit.reserve_to - commit.reserve
        return self.bytes + growth if growth else 0

    def _drop(self, commit: Commit, dropped: list[Segment]) -> None:
        # The commit says in its batch where the log starts then, and removes the files only when that is durable: a
        # start would take a missing segment for damage. Until it has ended, readers may find that a file is gone.
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
        """Return how large the active segment's file may become.

        If a new segment begins, this is for both of them: the new file, and what the old one keeps.
        """
        others = self.bytes - self.active.size - sum(self._leftover.values())
        return self.room.cap - self.room.meta_bytes - others

    def _prepare(self, commit: Commit, tail: int | None) -> None:
        """Grow the commit's file past its end, as far as the cap allows, so that a tail for settles is left.

        If the cap has no room for the commit itself, the spare file is given up, then the reserve, then what was
        prepared in earlier segments and could not be cut off when they were full. ::

            new segment  disk         the file grows                                  what was prepared in the old one
            no           has room     to twice its size, up to a segment and a tail   -
            no           full         as far as the batch                             -
            yes          has room     likewise, if the cap has room for both files    is cut off afterwards
            yes          has room     only as far as beside it, if that is enough     is cut off afterwards
            yes          either       else as if it were cut off                      is cut off first
        """
        # The old segment keeps its contents in any case. What it has prepared behind them is looked at below.
        room = self._file_room() - (self.active.end if commit.rolled else 0)
        if (room < commit.end or self.room.excess) and self._spare:
            commit.remove_first(self._spare.path, self._spare.size)
            room += self._spare.size
            self._spare = None
        if room < commit.end and self.reserve:
            room += self.reserve
            self.reserve = 0
            commit.give_up_reserve()
        if room < commit.end and self._uncut:
            self._uncut = [each for each in self._uncut if each in self.segments]
            room += commit.cut_earlier(tuple(self._uncut))
        wanted = least = commit.end + (tail or 0)
        if tail is not None and commit.size - least < HEADROOM_BYTES:
            # Zeros ahead make later syncs cheap. Behind a large commit they would cost more than they save.
            is_large = commit.added >= LARGE_COMMIT_BYTES
            growth = 0 if is_large else min(max(GROWTH_BYTES_FIRST, commit.size), GROWTH_BYTES_MAX)
            most = self.room.segment_bytes + (self._tail_bytes + HEADROOM_BYTES if tail else 0)
            wanted = max(min(commit.size + growth, most), least)
        size = max(commit.end, commit.size, min(wanted, room))  # the batch must fit, whatever the cap is
        prepared = self.active.size - self.active.end
        # Both files are there until the commit is durable. If the cap has no room for that, the new one gets less, and
        # if it would not get what it needs, the old one is cut before anything is written: that costs a sync more.
        if commit.rolled and (tail is None or size > room - prepared):
            if tail is None or room - prepared < max(least, commit.size):
                commit.cut_first()
            else:
                size = room - prepared
        commit.grow_to(size, min(least, size))
        missing = commit.size - room - self.room.excess
        if missing > 0:  # only if the cap was made smaller than what the log needs to continue
            self.room.exceed_by(self.room.excess + missing)

    def _keep_reserve(self, commit: Commit, settles: int) -> None:
        """Let the reserve grow to hold `settles` bytes of settles, in large steps, if the cap has room for it."""
        steps = max(1 << (settles - 1).bit_length(), GROWTH_BYTES_FIRST)
        room = self.room
        if min(steps, room.ample_bytes) > self.reserve:
            taken = commit.size + (self.active.size if commit.rolled else 0)
            free = self._file_room() + self.reserve - taken
            size = min(steps, room.ample_bytes if free >= room.ample_bytes else room.small_bytes)
            if self.reserve < size <= free:
                commit.grow_reserve(size)

    def _worth_keeping(self, dropped: list[Segment]) -> Segment | None:
        """Return a dropped segment whose file is worth keeping for the next roll."""
        if self._spare is not None or self.room.excess or self.is_pinned:
            return None
        least = self.room.segment_bytes // 2
        return next((s for s in dropped if not s.damaged and least <= s.size <= RECYCLE_BYTES_MAX), None)

    def _take_cuts(self, segments: Sequence[Segment]) -> None:
        """Take in that segments were cut to their contents."""
        for segment in segments:
            segment.size = segment.end
            self._uncut.remove(segment)
        self._count_sealed()

    def succeeded(self, commit: Commit) -> None:
        """Take a commit that is on disk into the log."""
        self._under_way = None
        if self._after_drop:
            self.commit_ended()
        if commit.cut:
            self._take_cuts(commit.cut)
        self._leftover = {}
        self.reserve = commit.reserve
        if commit.has_synced_names:
            self._undurable_bytes = 0
        if commit.rolled:
            self.active.size = commit.old_size
            if commit.old_size > self.active.end:
                self._uncut.append(self.active)
            self.fenced = False
            self.segments.append(commit.segment)
            old = self.segments[-2]
            old.redo = 0 if not commit.doubt else old.redo
        commit.segment.end = commit.end
        commit.segment.size = commit.size
        if commit.syncs and not commit.redo:
            commit.segment.redo = 0
        if commit.rolled:
            self._count_sealed()
        else:
            self.room.ends(commit.end)

    def release_dropped(self, commit: Commit) -> None:
        """Take the segments that a commit drops out of the log. The commit is on disk, and nothing in them is live."""
        for segment in commit.dropped:
            assert self.segments[0] is segment and segment.runs == 0 and segment.tries_records == 0
            del self.segments[0]
            if segment.damaged:
                self.room.set_aside(segment.size)
            elif segment is commit.kept and not self.is_pinned:
                self._spare = Spare(segment.path, segment.size)
            elif segment is commit.kept or segment.path in commit.unremoved:
                self._leftover[segment.path] = segment.size
            elif not commit.has_synced_removals:
                self._undurable_bytes += segment.size
        self.log_start = self.segments[0].number
        self._count_sealed()

    def failed(self, commit: Commit) -> None:
        """Leave the log at its last good batch. Unless the commit was undone, the next one begins a new segment.

        If the commit has created a segment file, that is not part of the chain: the next segment will name the old one.
        """
        self.commit_ended()
        if commit.cut:
            self._take_cuts(commit.cut)
        self._leftover = commit.files_touched()  # including the earlier left-overs: the commit was to remove them
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
