"""One commit: what is written to a queue's log in one turn, and how it is undone if the disk has no room.

Room first, contents last: a commit takes the room it needs on the disk before it writes its batch there. So if the disk
is full, the batch was either not written at all, or its header is wiped, durably, before it is reported, and no
recovery finds it. After any other failure it is unknown what is on the disk, and the segment is fenced (see `log`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from types import MappingProxyType
from typing import NamedTuple

from curbstone.core.disk import NO_SPACE
from curbstone.core.durable_write import DurableWrite
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES, SegmentHeader, encode_segment_header
from curbstone.core.write_behind import WriteBehindDisk, WriteBehindFile

SEGMENT_SUFFIX = ".seg"
ASIDE_SUFFIX = ".bad"
RESERVE_NAME = "reserve"
"""The file that holds room on the disk for settles; see `log`."""
_NO_PATHS: frozenset[str] = frozenset()
_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class Segment:
    """One file of the ring."""

    __slots__ = (
        "damaged", "dead_ms", "end", "file", "is_redoable", "number", "path", "redo", "runs", "salt", "size",
        "tries_records",
    )  # fmt: skip

    def __init__(
        self, number: int, path: str, salt: int, end: int, size: int, file: WriteBehindFile | None = None
    ) -> None:
        self.number = number
        self.path = path
        self.salt = salt
        self.end = end
        """Where its contents end."""
        self.size = size
        """Bytes of the file. Those behind `end` have been prepared, or are stale."""
        self.file = file
        """Open while the segment is written to."""
        self.runs = 0
        """How many runs have live messages here."""
        self.tries_records = 0
        """How many pending messages have the latest record of their tries here."""
        self.dead_ms = 0
        """Engine time when it was first seen without runs and records of tries; 0 before the first look."""
        self.damaged = False
        self.is_redoable = True
        """Whether its commits may go to redo files: only if its header has the format that older programs refuse."""
        self.redo = 0
        """The latest redo file with bytes of this segment that were not synced here since; 0 for none."""

    def snapshot(self) -> Segment:
        """Return a copy from which a worker thread can read the present contents, while this one continues changing."""
        return Segment(self.number, self.path, self.salt, self.end, self.size)

    def __repr__(self) -> str:
        return f"Segment({self.number}, {self.end}/{self.size} bytes, {self.runs} runs)"


class Spare(NamedTuple):
    """A file whose contents are not needed: room on the disk for a new segment."""

    path: str
    size: int


class Commit:
    """The writes of one turn. Methods that touch the disk run on a worker thread, all others on the event loop."""

    __slots__ = (
        "_aside", "_cut_first", "_directory", "_disk", "_fenced", "_held", "_least", "_old", "_remove_first",
        "_remove_last", "_syncs_names", "_to_cut", "buffers", "cut", "doubt", "dropped", "end", "erases",
        "has_synced_names", "has_synced_removals", "is_undone", "kept", "offset", "old_size", "redo", "reserve",
        "reserve_to", "rolled", "segment", "size", "syncs", "taken", "uid", "unremoved",
    )  # fmt: skip

    def __init__(
        self, disk: WriteBehindDisk, directory: str, uid: int, active: Segment, reserve: int, *, sync: bool
    ) -> None:
        self._disk = disk
        self._directory = directory
        self.uid = uid
        self.syncs = sync
        """Whether the commit counts only when it is durable."""
        self.segment = active
        """The segment the batches go to."""
        self.offset = active.end
        """Where in the segment the writing begins."""
        self.end = active.end
        """Where in the segment the batches end."""
        self._held = active.size
        """The size of the segment's file before the commit."""
        self.size = active.size
        """The size that the file shall have, with zeros behind the batches."""
        self._least = active.size
        """The size that is enough if the disk has no room for `size`."""
        self.dropped: Sequence[Segment] = ()
        self.kept: Segment | None = None
        """The dropped segment whose file is kept as the spare."""
        self.erases = False
        """Whether removed files must not return, not even as left-overs after a crash."""
        self._syncs_names = False
        """Whether earlier removals have to be durable before anything is written."""
        self.has_synced_names = False
        """Whether what earlier commits removed is durable now."""
        self.has_synced_removals = False
        """Whether what this commit removed last is durable, too."""
        self.unremoved: frozenset[str] = _NO_PATHS
        """Files that could not be removed, though the commit is on disk."""
        self.is_undone = False
        """Whether it failed because the disk was full, and none of it is left there."""
        self.doubt = ""
        """Why a segment that redo files have bytes of could not be synced. Then the redo files must be kept."""
        self.redo = 0
        """The redo file that made the commit durable, or 0 if the segment's own file was synced."""
        self.old_size = active.size
        """The size now of the segment before a new one."""
        self.reserve = reserve
        """The size of the reserve."""
        self.reserve_to = self.reserve
        """The size that the reserve shall have after this commit."""
        self.buffers: list[bytes] = []
        """What it writes to the segment from `offset` on."""
        self.rolled = False
        """Whether this commit begins a new segment."""
        self._old: Segment | None = None
        """The segment before a new one."""
        self._fenced = False
        """Whether a sync or write has failed in `_old`; see `Log.fenced`."""
        self._cut_first = False
        """Whether `_old` is cut to its contents before anything is written, instead of afterwards."""
        self.taken: Spare | None = None
        """The file that a new segment is put into, or None to create one."""
        self._remove_first: Mapping[str, int] = _NO_SIZES
        """Files with their sizes; see `remove_first`, and for the next two `remove_last` and `set_aside`."""
        self._remove_last: tuple[str, ...] = ()
        self._aside: tuple[str, ...] = ()
        self._to_cut: Sequence[Segment] = ()
        """Earlier segments to cut to their contents before anything is written; see `cut_earlier`."""
        self.cut: tuple[Segment, ...] = ()
        """Those of them that were cut."""

    @property
    def added(self) -> int:
        """Bytes that it adds."""
        return self.end - self.offset

    @property
    def is_durable(self) -> bool:
        """Whether a restart is to find it, if only because the system writes it some time."""
        return self._disk.syncs

    @property
    def is_plain(self) -> bool:
        """Whether it only writes into room that is prepared and durable, so that a redo file can say all of it."""
        return (
            self._old is None
            and self.size == self._held
            and self.segment.is_redoable
            and not (self.dropped or self._remove_first or self._syncs_names or self._to_cut)
            and self.reserve_to <= self.reserve
        )

    def roll(self, header: SegmentHeader, spare: Spare | None, reserve: int, *, fenced: bool) -> None:
        """Begin a new segment, in the file `spare` if there is one. `reserve` is the size of the reserve without it."""
        self._old = self.segment
        self.rolled = True
        self._fenced = self._cut_first = fenced
        path = segment_path(self._directory, header.number)
        self.segment = Segment(header.number, path, header.salt, SEGMENT_BYTES, 0)
        self.taken = spare
        self.size = self._held = self._least = spare.size if spare else 0
        self.reserve = self.reserve_to = reserve
        self.buffers = [encode_segment_header(header)]
        self.offset = 0
        self.end = SEGMENT_BYTES

    def add(self, buffers: list[bytes], size: int) -> tuple[int, int]:
        """Put a batch of `size` bytes behind the others; return its offsets (start, end) in the segment."""
        start = self.end
        self.end += size
        self.buffers = [*self.buffers, *buffers] if self.buffers else buffers
        return start, self.end

    def remove_first(self, path: str, size: int) -> None:
        """Remove a file, durably, before anything is written."""
        self._remove_first = {**self._remove_first, path: size}

    def sync_names_first(self) -> None:
        """Make earlier removals durable before anything is written: the cap has no room for those files."""
        self._syncs_names = True

    def remove_last(self, path: str) -> None:
        """Remove a file when everything is durable."""
        self._remove_last += (path,)

    def set_aside(self, path: str) -> None:
        """Keep a damaged segment, but rename it, when everything is durable, so that it is no part of the log."""
        self._aside += (path,)

    def cut_first(self) -> None:
        """Cut the segment before the new one to its contents first: the cap has no room for both files as they are."""
        self._cut_first = True

    def cut_earlier(self, segments: Sequence[Segment]) -> int:
        """Cut segments to their contents first, because that failed when they were full; return the bytes gained."""
        self._to_cut = segments
        return sum([segment.size - segment.end for segment in segments])

    def grow_to(self, size: int, least: int) -> None:
        """Prepare the file ahead, with real zeros, so that later syncs change neither its size nor its extents.

        If the disk has no room for `size` bytes, `least` are enough.
        """
        assert size >= self.end and size >= least
        self.size = max(self.size, size)
        self._least = max(least, self.end, self._held)

    def give_up_reserve(self) -> None:
        """Remove the reserve before anything is written."""
        self.remove_first(reserve_path(self._directory), self.reserve)
        self.reserve = self.reserve_to = 0

    def grow_reserve(self, size: int) -> None:
        """Let the reserve grow to `size` bytes. If the disk has no room for that, the commit fails."""
        self.reserve_to = size

    # --- what a worker thread does

    def open(self) -> None:
        """Have the segment's file open, or raise OSError."""
        self._file_of(self.segment)

    def defer(self, redo: int) -> None:
        """Have the segment's own file written later: the redo file `redo` has made a plain commit durable.

        With 0 no file has, because the commit need not be durable.
        """
        self.redo = redo
        self._file_of(self.segment).defer(self.offset, self.buffers)

    def run(self) -> None:
        """Write, sync, then remove what is no longer needed. After an OSError the log continues from where it was."""
        self.write()
        if self.syncs or self.rolled:
            self.sync()
        if self.rolled:
            self._sync_names()
        if self._old is not None and not self._cut_first:
            with suppress(OSError):  # then the file keeps its length
                self._cut(self._old)
            self._close_old(self._old)
        self._tidy()

    def durable_write(self) -> DurableWrite | None:
        """Begin the whole commit as one write and sync, if it is no more than that; see `core.durable_write`.

        Called on the event loop. If it fails, call `run`.
        """
        if not (self.syncs and self.is_plain) or self._remove_last or self._aside or self.segment.file is None:
            return None
        return self.segment.file.durable_write(self.offset, self.buffers)

    def write(self) -> None:
        """Write everything, or raise OSError. Then `is_undone` is True if none of it is left on the disk."""
        try:
            self._write()
        except OSError as error:
            self.is_undone = error.errno in NO_SPACE and self._undo()
            raise

    def sync(self) -> None:
        assert self.segment.file is not None
        self._sync_file(self.segment, self.segment.file)

    def _sync_file(self, segment: Segment, file: WriteBehindFile) -> None:
        """Sync a segment.

        If that fails, the system may also have lost earlier writes to the file that only a redo file has made durable.
        """
        try:
            file.sync()
        except OSError as error:
            if segment.redo:
                self.doubt = f"syncing {segment.path} failed: {error}"
            raise

    def _write(self) -> None:
        """Do everything that takes room on the disk."""
        for segment in self._to_cut:
            with closing(self._disk.open(segment.path)) as file:
                file.truncate(segment.end)
                file.sync()
            self.cut += (segment,)
        for path in self._remove_first:
            self._remove(path)
        if self._remove_first or self._syncs_names:
            # A segment whose creation failed says where the one before it ends. If a crash brought it back, it would
            # cut off what is written to that one from now on.
            self._sync_names()
            self._remove_first = _NO_SIZES
        if self.reserve_to > self.reserve:
            self._write_reserve()
        if self._old is not None:
            self._open_new(self._old)
        active = self._file_of(self.segment)
        if self.end > self._held:  # the batch and the zeros behind it go into one write
            self._write_padded(active, self.offset, self.buffers, self.end)
        else:
            if self.size > self._held:
                self._write_padded(active, self._held, [], self._held)
            if self.buffers:
                active.write(self.offset, self.buffers)

    def _write_padded(self, file: WriteBehindFile, offset: int, buffers: list[bytes], end: int) -> None:
        """Write `buffers`, which end at `end`, and zeros up to `size`, or only to `_least` if the disk is too full."""
        try:
            file.write(offset, [*buffers, bytes(self.size - end)])
        except OSError as error:
            if error.errno not in NO_SPACE or self._least >= self.size:
                raise
            file.truncate(self._held)
            self.size = self._least
            if self.size > self._held:
                file.write(offset, [*buffers, bytes(self.size - end)])

    def _write_reserve(self) -> None:
        path = reserve_path(self._directory)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            file = self._disk.open(path, create=True)
        held = self.reserve
        try:
            file.write(held, [bytes(self.reserve_to - held)])
            self.reserve = self.reserve_to
        except OSError:
            file.truncate(held)
            file.sync()  # else, after a power cut, what was written of it would count against the cap
            raise
        finally:
            file.close()

    def _open_new(self, old: Segment) -> None:
        if self._cut_first:
            self._cut(old)
            self._close_old(old)
        elif old.file is not None and (old.redo or not self.syncs):
            self._sync_file(old, old.file)
        if self.taken is not None:
            self._disk.rename(self.taken.path, self.segment.path)
        self.segment.file = self._disk.open_lasting(self.segment.path, create=self.taken is None)

    def _file_of(self, segment: Segment) -> WriteBehindFile:
        """Return the file of a segment. It has to be opened after a start, and after a failed attempt at a new one."""
        if segment.file is None:
            segment.file = self._disk.open_lasting(segment.path)
        return segment.file

    def _cut(self, old: Segment) -> None:
        """Cut off what was prepared behind the contents of a segment.

        This must be durable, because after a crash the longer file would count against the cap.
        """
        file = self._file_of(old)
        is_cut = old.size > old.end
        if is_cut:
            file.truncate(old.end)
        self.old_size = old.end
        if self._fenced:
            with suppress(OSError):  # only batches that were good before the failure count in this file
                self._sync_file(old, file)
        elif is_cut or (self._cut_first and (old.redo or not self.syncs)):
            self._sync_file(old, file)

    def _close_old(self, old: Segment) -> None:
        if old.file is not None:
            old.file.close()
            old.file = None

    def _undo(self) -> bool:
        """Make sure that recovery can't find the batch, not even after a power cut; return False if that failed.

        A batch without its header is none. So the header is overwritten with zeros, as far as it lies in room that was
        there before; the part by which the file has grown is cut off.
        """
        file = self.segment.file
        try:
            if self.rolled:
                if file is not None:
                    if self.taken is not None:
                        # Under the number of the next segment, this header would pass for damage after a crash.
                        file.write(0, [bytes(SEGMENT_BYTES)])
                    file.truncate(self._held)
                    if self.taken is not None:
                        file.sync()
                    file.close()
                    self.segment.file = None
                if self.taken is None:
                    self._remove(self.segment.path)
                elif file is not None:
                    self._disk.rename(self.segment.path, self.taken.path)
                self._disk.sync_dir(self._directory)
            elif file is not None:
                head = min(BATCH_BYTES, self._held - self.offset)
                if head > 0:
                    file.write(self.offset, [bytes(head)])
                file.truncate(self._held)
                self._sync_file(self.segment, file)
        except OSError:
            return False
        return True

    def _tidy(self) -> None:
        """Remove or rename the files that are no part of the log any more."""
        for path in self._remove_last:
            try:
                self._remove(path)
            except OSError:  # the next commit will try again
                self.unremoved |= {path}
        if self.erases and self._remove_last:
            with suppress(OSError):
                self._sync_names()
                self.has_synced_removals = True
        for path in self._aside:
            with suppress(OSError):  # under either name it is no part of the log
                self._disk.rename(path, path.removesuffix(SEGMENT_SUFFIX) + ASIDE_SUFFIX)
        if self._aside:  # under its old name recovery would take it for a left-over
            with suppress(OSError):
                self._disk.sync_dir(self._directory)

    def _sync_names(self) -> None:
        self._disk.sync_dir(self._directory)
        self.has_synced_names = True

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(path)

    def files_touched(self) -> dict[str, int]:
        """Return the files, with sizes, that a failed commit may have left and that are no part of the log."""
        files = dict(self._remove_first)
        if self.rolled and not self.is_undone:
            files[self.segment.path] = self.size
            if self.taken is not None:
                files[self.taken.path] = self.size
        return files


def segment_path(directory: str, number: int) -> str:
    return f"{directory}/{number:010d}{SEGMENT_SUFFIX}"


def reserve_path(directory: str) -> str:
    return f"{directory}/{RESERVE_NAME}"
