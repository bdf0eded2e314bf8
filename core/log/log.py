"""The capped log of one queue: a ring of segment files, written a commit at a time.

The log knows files, sizes and the cap; what the batches say is the queue's business. One commit is
under way at a time: the queue asks what fits, hands over encoded batches, and `Commit.run` is what a
worker thread does with them.

Segments form a chain: each names the one before it and where that one ends, so a file left behind by
a failed or undone operation is never part of the log. The oldest are dropped, never others, and only
after a batch is on disk that says so (the floor).

Sizes: `free_bytes` counts contents; what a file has been grown beyond its contents, and the spare
file kept for recycling, can be had back at once. `bytes` is what the directory really holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

from curbstone.core.disk import Disk, File
from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES, SegmentHeader, encode_segment_header

SEGMENTS_PER_CAP = 16
SEGMENT_BYTES_MIN = 4 * 1024
GROWTH_BYTES_FIRST = 32 * 1024
GROWTH_BYTES_MAX = 4 * 1024 * 1024
HEADERS_BYTES = SEGMENTS_PER_CAP // 2 * (SEGMENT_BYTES + BATCH_BYTES)
HEADROOM_BYTES = 4 * 1024
LARGE_COMMIT_BYTES = 128 * 1024  # writing zeros for the next of its kind costs more than a sync that changes the size
IDLE_BYTES_MAX = 48 * 1024  # with `meta` an idle, empty queue keeps at most 64 KiB
RECYCLE_BYTES_MAX = 64 * 1024 * 1024

SEGMENT_SUFFIX = ".seg"
ASIDE_SUFFIX = ".bad"

Salt = Callable[[], int]


def random_salt() -> int:
    """Return 32 random bits."""
    return secrets.randbits(32)


class Segment:
    """One file of the ring."""

    __slots__ = ("damaged", "end", "file", "number", "path", "runs", "salt", "size", "states")

    def __init__(self, number: int, path: str, salt: int, end: int, size: int, file: File | None = None) -> None:
        self.number = number
        self.path = path
        self.salt = salt
        self.end = end
        """Where its contents end."""
        self.size = size
        """Bytes of the file: what lies behind `end` has been prepared, or is stale."""
        self.file = file
        """Open while the segment is written to."""
        self.runs = 0
        """How many runs have live messages here."""
        self.states = 0
        """How many pending messages have the latest record of their tries here."""
        self.damaged = False

    def __repr__(self) -> str:
        return f"Segment({self.number}, {self.end}/{self.size} bytes, {self.runs} runs)"


class Commit:
    """The writes of one turn; `run` is called on a worker thread, all else on the engine's."""

    __slots__ = (
        "_aside", "_buffers", "_disk", "_fenced", "_grow", "_log", "_offset", "_old", "_recycled", "_remove_first",
        "_remove_last", "_sync", "dropped", "end", "erases", "kept", "segment", "size", "unremoved",
    )  # fmt: skip

    def __init__(self, log: Log, *, sync: bool) -> None:
        self._log = log
        self._disk = log.disk
        self._sync = sync
        self.segment = log.active
        """The segment the batches go to."""
        self.end = self._offset = log.active.end
        self.size = log.active.size
        self.dropped: list[Segment] = []
        self.kept: Segment | None = None
        """The dropped segment whose file is kept as the spare."""
        self.erases = False
        """Whether what is removed must not come back, also not as a left-over after a crash."""
        self.unremoved: set[str] = set()
        self._buffers: list[bytes] = []
        self._grow: tuple[int, int] | None = None
        self._old: Segment | None = None
        self._fenced = False
        self._recycled = ""
        self._remove_first: dict[str, int] = {}
        self._remove_last: list[str] = []
        self._aside: list[str] = []

    @property
    def rolled(self) -> bool:
        """Whether this commit begins a new segment."""
        return self._old is not None

    @property
    def added(self) -> int:
        """Bytes that it adds."""
        return self.end - self._offset

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self._buffers and not self.dropped

    def roll(self, header: SegmentHeader, spare: str, spare_size: int, *, fenced: bool) -> None:
        """Begin a new segment, in the file `spare` if that is given."""
        self._old = self.segment
        self._fenced = fenced
        path = segment_path(self._log.directory, header.number)
        self.segment = Segment(header.number, path, header.salt, SEGMENT_BYTES, 0)
        self._recycled = spare
        self.size = spare_size
        self._buffers = [encode_segment_header(header)]
        self._offset = 0
        self.end = SEGMENT_BYTES

    def add(self, buffers: list[bytes]) -> tuple[int, int]:
        """Put a batch behind the others; return its offsets (start, end) in the segment."""
        start = self.end
        self.end += sum(map(len, buffers))
        self._buffers += buffers
        return start, self.end

    def remove_first(self, path: str, size: int) -> None:
        """Remove a file before anything is written."""
        self._remove_first[path] = size

    def remove_last(self, path: str) -> None:
        """Remove a file after all is durable."""
        self._remove_last.append(path)

    def set_aside(self, path: str) -> None:
        """Keep a damaged segment, under a name that is no part of the log, after all is durable."""
        self._aside.append(path)

    def grow_to(self, size: int) -> None:
        """Prepare the file ahead, with real zeros: a later sync then changes no size and no extent."""
        assert size >= self.end
        if size <= self.size:
            return
        if self.size > self.end:  # what lies between was prepared before
            self._grow = (self.size, size)
        else:
            self._buffers.append(bytes(size - self.end))
        self.size = size

    def run(self) -> None:
        """Write, sync, then remove what is no longer needed; OSError leaves the log as it was."""
        for path in self._remove_first:
            self._remove(path)
        if self._remove_first:
            # A segment whose creation failed says where the one before it ends. Had it come back after a crash,
            # it would cut off what is written there from now on.
            self._disk.sync_dir(self._log.directory)
        if self._old is not None:
            self._open_new(self._old)
        file = self.segment.file
        if file is None:  # closed by an attempt at a new segment that failed
            file = self.segment.file = self._disk.open(self.segment.path)
        if self._buffers:
            file.write(self._offset, self._buffers)
        if self._grow is not None:
            start, end = self._grow
            file.write(start, [bytes(end - start)])
        if self._sync or self.rolled:
            file.sync()
        if self.rolled:
            self._disk.sync_dir(self._log.directory)
        for path in self._remove_last:
            try:
                self._remove(path)
            except OSError:  # it is no part of the log any more; the next commit tries again
                self.unremoved.add(path)
        if self.erases and self._remove_last:
            with suppress(OSError):
                self._disk.sync_dir(self._log.directory)
        for path in self._aside:
            with suppress(OSError):  # it is no part of the log under either name
                self._disk.rename(path, path.removesuffix(SEGMENT_SUFFIX) + ASIDE_SUFFIX)
        if self._aside:  # under its old name recovery would take it for a left-over
            with suppress(OSError):
                self._disk.sync_dir(self._log.directory)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(path)

    def _open_new(self, old: Segment) -> None:
        if old.file is not None:
            if old.size > old.end:  # durable before the bytes are used elsewhere: a crash must not exceed the cap
                old.file.truncate(old.end)
            if self._fenced:
                with suppress(OSError):  # nothing is believed of this file any more but what was good before
                    old.file.sync()
            elif old.size > old.end or not self._sync:
                old.file.sync()
            old.file.close()
            old.file = None
        if self._recycled:
            self._disk.rename(self._recycled, self.segment.path)
        self.segment.file = self._disk.open(self.segment.path, create=not self._recycled)

    def files_touched(self) -> dict[str, int]:
        """Return the files, with sizes, that may be left where they are if this failed."""
        files = dict(self._remove_first)
        if self.rolled:
            files[self.segment.path] = self.size
            if self._recycled:
                files[self._recycled] = self.size
        return files


class Log:
    """See the module's docstring."""

    def __init__(
        self, disk: Disk, directory: str, uid: int, *, cap: int, meta_bytes: int, salt: Salt = random_salt
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
        self.resize(cap, meta_bytes)
        self.aside_bytes = 0
        """Bytes of damaged segments that are kept for repair."""
        self._spare: Segment | None = None
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
        return self._sealed_bytes + self.active.size + spare + leftover + self.aside_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that contents may still grow by under the cap."""
        return self._cap - self._meta_bytes - self.aside_bytes - self._sealed_bytes - self.segments[-1].end

    def _reserve_bytes(self, largest: int) -> int:
        """What a publish must leave free: room to copy any one segment forward, and to settle meanwhile.

        A copy takes a little more than what is copied: it says of each message which groups have settled it.
        """
        copy = self.segment_bytes if self.segment_bytes > largest else largest
        return copy + copy // 4 + self.slack_bytes + HEADERS_BYTES

    @property
    def publish_room(self) -> int:
        """Bytes that publishes may add now; may be negative."""
        end = self.segments[-1].end
        return self.free_bytes - self._reserve_bytes(end if end > self._sealed_end_max else self._sealed_end_max)

    @property
    def records_room(self) -> int:
        """Bytes that settles and releases may add now: all but what copying any one segment forward takes."""
        return self.publish_room + self.slack_bytes - BATCH_BYTES

    def fits(self, size: int) -> bool:
        """Return whether a publish of `size` bytes, maybe larger than a segment, leaves the reserve free."""
        if size <= self.segment_bytes:
            return size <= self.publish_room
        return size <= self.publish_room and self.free_bytes - size >= self._reserve_bytes(size + SEGMENT_BYTES)

    def fits_pieces(self, size: int, largest: int) -> bool:
        """Return whether batches of `size` bytes in all, none larger than a segment or `largest`, leave it free."""
        return size <= self.publish_room and self.free_bytes - size >= self._reserve_bytes(largest + SEGMENT_BYTES)

    def fits_compacted(self, size: int, live_bytes: int, largest: int) -> bool:
        """Return whether it would after everything but `live_bytes` of entries has been cleaned away.

        `largest` is what of the `size` bytes has to go into one batch.
        """
        compacted = live_bytes + live_bytes // 64 + SEGMENTS_PER_CAP * SEGMENT_BYTES
        room = self._cap - self._meta_bytes - self.aside_bytes - compacted
        return room - size >= self._reserve_bytes(largest + SEGMENT_BYTES)

    @property
    def room_in_active(self) -> int:
        """Bytes that still go into the active segment before the next one begins."""
        return 0 if self.fenced else self.segment_bytes - self.active.end

    @property
    def records_span(self) -> int:
        """Bytes of releases that go well into one batch: what is left of a segment, or half a new one."""
        left = self.room_in_active - 4 * BATCH_BYTES
        return left if left > self.segment_bytes // 8 else self.segment_bytes // 2

    def resize(self, cap: int, meta_bytes: int) -> None:
        """Change the cap, or what `meta` takes of it."""
        self._cap = cap
        self._meta_bytes = meta_bytes
        self.segment_bytes = max(SEGMENT_BYTES_MIN, (cap - meta_bytes) // SEGMENTS_PER_CAP)
        """The size a segment is meant to have."""
        self.slack_bytes = self.segment_bytes // 4
        """Room kept for settling between two steps of the cleaner."""

    # --- commits

    def create(self, next_seq: int, number: int = 1) -> None:
        """Make the first segment of a new log; blocking."""
        assert not self.segments
        self._numbers = number
        header = SegmentHeader(self._salt(), self.uid, number, 0, 0, self.floor, next_seq, self.next_batch, self.tx)
        path = segment_path(self.directory, number)
        file = self.disk.open(path, create=True)
        file.write(0, [encode_segment_header(header).ljust(GROWTH_BYTES_FIRST, b"\0")])
        file.sync()
        self.segments.append(Segment(number, path, header.salt, SEGMENT_BYTES, GROWTH_BYTES_FIRST, file))

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

    def begin(self, *, sync: bool, roll: bool, next_seq: int, recycle: bool) -> Commit:
        """Start a commit, in a new segment if `roll` or if the active one is fenced; in the spare file if `recycle`."""
        commit = Commit(self, sync=sync)
        commit.erases = not recycle
        for path, size in self._leftover.items():
            commit.remove_first(path, size)
        if roll or self.fenced:
            self._numbers += 1
            old = self.active
            numbers = (self._numbers, old.number, old.end, self.floor)
            header = SegmentHeader(self._salt(), self.uid, *numbers, next_seq, self.next_batch, self.tx)
            spare = self._spare if recycle else None
            if spare is not None:
                self._spare = None
            commit.roll(header, spare.path if spare else "", spare.size if spare else 0, fenced=self.fenced)
        return commit

    def finish(self, commit: Commit, drops: int) -> None:
        """Complete a commit: drop the `drops` oldest segments with it, and prepare the file ahead."""
        commit.dropped = self.segments[:drops]
        if not commit.erases:
            commit.kept = self._worth_keeping(commit.dropped)
        elif self._spare:
            commit.remove_first(self._spare.path, self._spare.size)
            self._spare = None
        for segment in commit.dropped:
            if segment.damaged:
                commit.set_aside(segment.path)
            elif segment is not commit.kept:
                commit.remove_last(segment.path)
        if commit.size - commit.end < HEADROOM_BYTES:
            self._prepare(commit)

    def _prepare(self, commit: Commit) -> None:
        """Grow the commit's file past its end, as far as the cap allows."""
        others = self.bytes - self.active.size - sum(self._leftover.values())
        if commit.rolled:
            others += self.active.end
        room = self._cap - self._meta_bytes - others
        if room < commit.end and self._spare:
            commit.remove_first(self._spare.path, self._spare.size)
            room += self._spare.size
            self._spare = None
        is_large = commit.added >= LARGE_COMMIT_BYTES
        growth = 0 if is_large else min(max(GROWTH_BYTES_FIRST, commit.size), GROWTH_BYTES_MAX)
        wanted = max(min(commit.size + growth, self.segment_bytes), commit.end)
        commit.grow_to(max(commit.end, commit.size, min(wanted, room)))
        assert commit.size <= room, f"the cap is exceeded: {commit.size} bytes into {room}"

    def _worth_keeping(self, dropped: list[Segment]) -> Segment | None:
        """Return a dropped segment whose file is worth keeping for the next roll."""
        if self._spare is not None:
            return None
        least = self.segment_bytes // 2
        return next((s for s in dropped if not s.damaged and least <= s.size <= RECYCLE_BYTES_MAX), None)

    def succeeded(self, commit: Commit) -> None:
        """Take a commit that is on disk into the log."""
        self._leftover = {}
        if commit.rolled:
            self.active.size = self.active.end
            self.fenced = False
            self.segments.append(commit.segment)
        commit.segment.end = commit.end
        commit.segment.size = commit.size
        for segment in commit.dropped:
            assert self.segments[0] is segment and segment.runs == 0 and segment.states == 0
            del self.segments[0]
            if segment.damaged:
                self.aside_bytes += segment.size
            elif segment is commit.kept:
                self._spare = segment
            elif segment.path in commit.unremoved:
                self._leftover[segment.path] = segment.size
        if commit.dropped:
            self.floor = self.segments[0].number
        if commit.rolled or commit.dropped:
            self._count_sealed()

    def failed(self, commit: Commit) -> None:
        """Leave the log at its last good batch; the next commit begins a new segment.

        Whatever became of a new file, it is not in the chain: the next segment names the old one.
        """
        self._leftover |= commit.files_touched()
        if commit.rolled:
            if commit.segment.file is not None:
                commit.segment.file.close()
        else:
            self.active.size = max(self.active.size, commit.size)
        self.fenced = True

    def close(self) -> None:
        """Close the file; nothing is synced."""
        if self.segments and self.active.file is not None:
            self.active.file.close()
            self.active.file = None


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment file."""
    return f"{directory}/{number:010d}{SEGMENT_SUFFIX}"
