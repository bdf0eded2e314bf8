"""One commit: what is written to a queue's log in one turn, and how it is undone where the disk has no room.

Room first, contents last: what a commit needs of the disk it takes with zeros, before it writes its batch into that.
So a batch that was refused for want of room was not written at all, or is made unreadable, durably, before anybody
hears of it: no recovery finds it. After any other failure nobody can say what is on the disk; then the segment is
fenced (see `log`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from curbstone.core.log.format import BATCH_BYTES, SEGMENT_BYTES, SegmentHeader, encode_segment_header
from curbstone.core.log.redo import Part
from curbstone.core.write_behind import WriteBehindDisk, WriteBehindFile

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SEGMENT_SUFFIX = ".seg"
ASIDE_SUFFIX = ".bad"
RESERVE_NAME = "reserve"
_NO_PATHS: frozenset[str] = frozenset()
_NO_SIZES: Mapping[str, int] = MappingProxyType({})
"""The file that holds room on the disk for settles; see `log`."""


class Segment:
    """One file of the ring."""

    __slots__ = (
        "damaged", "dead_ms", "end", "file", "is_redoable", "number", "path", "redo", "runs", "salt", "size", "states",
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
        """Bytes of the file: what lies behind `end` has been prepared, or is stale."""
        self.file = file
        """Open while the segment is written to."""
        self.runs = 0
        """How many runs have live messages here."""
        self.states = 0
        """How many pending messages have the latest record of their tries here."""
        self.dead_ms = 0
        """Engine time when it was seen first that neither is here; 0 while nobody asked."""
        self.damaged = False
        self.is_redoable = True
        """Whether the redo files may speak of it: its header says so to readers that know nothing of them."""
        self.redo = 0
        """The latest redo file that has something of it which was not synced here since; 0 for none."""

    def as_it_is(self) -> Segment:
        """Return what a worker thread needs to read what is in it now: this one goes on changing."""
        return Segment(self.number, self.path, self.salt, self.end, self.size)

    def __repr__(self) -> str:
        return f"Segment({self.number}, {self.end}/{self.size} bytes, {self.runs} runs)"


class Spare(NamedTuple):
    """A file whose contents nobody needs: room on the disk for a new segment."""

    path: str
    size: int


class Commit:
    """The writes of one turn; `run` is called on a worker thread, all else on the engine's."""

    __slots__ = (
        "_aside", "_buffers", "_cut_first", "_directory", "_disk", "_fenced", "_held", "_least", "_offset", "_old",
        "_remove_first", "_remove_last", "_uid", "dropped", "end", "erases", "is_doubtful", "is_undone",
        "kept", "old_size", "redo", "reserve", "reserve_to", "rolled", "segment", "size", "syncs", "taken", "unremoved",
    )  # fmt: skip

    def __init__(
        self, disk: WriteBehindDisk, directory: str, uid: int, active: Segment, reserve: int, *, sync: bool
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._uid = uid
        self.syncs = sync
        """Whether it counts only when it is durable."""
        self.segment = active
        """The segment the batches go to."""
        self._offset = active.end
        """Where it is written from."""
        self.end = active.end
        """Where the batches end in it."""
        self._held = active.size
        """The size that its file has before."""
        self.size = active.size
        """The size that it is to have, with zeros behind the batches."""
        self._least = active.size
        """The size that will do where the disk has no room for `size`."""
        self.dropped: Sequence[Segment] = ()
        self.kept: Segment | None = None
        """The dropped segment whose file is kept as the spare."""
        self.erases = False
        """Whether what is removed must not come back, also not as a left-over after a crash."""
        self.unremoved: frozenset[str] = _NO_PATHS
        self.is_undone = False
        """Of one that failed: there was no room on the disk, and nothing of it is left there."""
        self.is_doubtful = False
        """Whether a segment could not be synced of which the redo files have something: they must be kept."""
        self.redo = 0
        """The redo file that made it durable, or 0 where its own file was synced."""
        self.old_size = active.size
        """The size that the segment before a new one has now."""
        self.reserve = reserve
        """The size of the reserve."""
        self.reserve_to = self.reserve
        """The size that it is to have after this commit."""
        self._buffers: list[bytes] = []
        self.rolled = False
        """Whether this commit begins a new segment."""
        self._old: Segment | None = None
        """The one before that."""
        self._fenced = False
        """Whether that is written to no more because a sync or write failed there; see `Log.fenced`."""
        self._cut_first = False
        """Whether it is cut to its contents before anything is written, not afterwards."""
        self.taken: Spare | None = None
        """The file that a new segment is put into."""
        self._remove_first: Mapping[str, int] = _NO_SIZES
        """Files with their sizes; see `remove_first`, and for the others `remove_last` and `set_aside`."""
        self._remove_last: tuple[str, ...] = ()
        self._aside: tuple[str, ...] = ()

    @property
    def added(self) -> int:
        """Bytes that it adds."""
        return self.end - self._offset

    @property
    def is_plain(self) -> bool:
        """Whether it does nothing but write into what was prepared and is durable: a redo file can say all of it."""
        return (
            self._old is None
            and self.size == self._held
            and self.segment.is_redoable
            and not (self.dropped or self._remove_first or self.reserve_to > self.reserve)
        )

    @property
    def part(self) -> Part:
        """Where a plain commit writes, for a redo file."""
        segment = self.segment
        return Part(self._uid, segment.number, segment.salt, self._offset, self.end - self._offset)

    @property
    def buffers(self) -> list[bytes]:
        """What a plain commit writes there, in order."""
        return self._buffers

    def roll(self, header: SegmentHeader, spare: Spare | None, reserve: int, *, fenced: bool) -> None:
        """Begin a new segment, in the file `spare` if that is given."""
        self._old = self.segment
        self.rolled = True
        self._fenced = self._cut_first = fenced
        path = segment_path(self._directory, header.number)
        self.segment = Segment(header.number, path, header.salt, SEGMENT_BYTES, 0)
        self.taken = spare
        self.size = self._held = self._least = spare.size if spare else 0
        self.reserve = self.reserve_to = reserve
        self._buffers = [encode_segment_header(header)]
        self._offset = 0
        self.end = SEGMENT_BYTES

    def add(self, buffers: list[bytes]) -> tuple[int, int]:
        """Put a batch behind the others; return its offsets (start, end) in the segment."""
        start = self.end
        self.end += sum(map(len, buffers))
        self._buffers = [*self._buffers, *buffers] if self._buffers else buffers
        return start, self.end

    def remove_first(self, path: str, size: int) -> None:
        """Remove a file before anything is written."""
        self._remove_first = {**self._remove_first, path: size}

    def remove_last(self, path: str) -> None:
        """Remove a file after all is durable."""
        self._remove_last += (path,)

    def set_aside(self, path: str) -> None:
        """Keep a damaged segment, under a name that is no part of the log, after all is durable."""
        self._aside += (path,)

    def cut_first(self) -> None:
        """Cut the segment before the new one to its contents first: both have no room, as they are."""
        self._cut_first = True

    def grow_to(self, size: int, least: int) -> None:
        """Prepare the file ahead, with real zeros: a later sync then changes no size and no extent.

        If the disk has no room for `size`, `least` bytes will do.
        """
        assert size >= self.end and size >= least
        self.size = max(self.size, size)
        self._least = max(least, self.end, self._held)

    def give_up_reserve(self) -> None:
        """Remove the reserve before anything is written."""
        self.remove_first(reserve_path(self._directory), self.reserve)
        self.reserve = self.reserve_to = 0

    def grow_reserve(self, size: int) -> None:
        """Let the reserve have `size` bytes, or the commit fails."""
        self.reserve_to = size

    # --- what a worker thread does

    def open(self) -> None:
        """Have the segment's file open, or raise OSError."""
        self._file_of(self.segment)

    def defer(self, redo: int) -> None:
        """A redo file has made a plain commit durable: its own file can wait for it."""
        self.redo = redo
        self._file_of(self.segment).defer(self._offset, self._buffers)

    def run(self) -> None:
        """Write, sync, then remove what is no longer needed; OSError leaves the log as it was."""
        self.write()
        if self.syncs or self.rolled:
            self.sync()
        if self.rolled:
            self._disk.sync_dir(self._directory)
        if self._old is not None and not self._cut_first:
            with suppress(OSError):  # then it stays as long as it is
                self._cut(self._old)
            self._close_old(self._old)
        self._tidy()

    def write(self) -> None:
        """Write all of it, or raise OSError; `is_undone` then says whether nothing of it is left."""
        try:
            self._write()
        except OSError as error:
            self.is_undone = error.errno in NO_SPACE and self._undo()
            raise

    def sync(self) -> None:
        """Make durable what was written to the segment."""
        assert self.segment.file is not None
        self._sync_file(self.segment, self.segment.file)

    def _sync_file(self, segment: Segment, file: WriteBehindFile) -> None:
        """Sync a segment; where that fails the system may have lost all that was not synced before, too."""
        try:
            file.sync()
        except OSError:
            self.is_doubtful |= segment.redo > 0
            raise

    def _write(self) -> None:
        """Do all that takes room."""
        for path in self._remove_first:
            self._remove(path)
        if self._remove_first:
            # A segment whose creation failed says where the one before it ends. Had it come back after a crash,
            # it would cut off what is written there from now on.
            self._disk.sync_dir(self._directory)
            self._remove_first = _NO_SIZES
        if self.reserve_to > self.reserve:
            self._write_reserve()
        if self._old is not None:
            self._open_new(self._old)
        file = self._file_of(self.segment)
        if self.end > self._held:  # what is prepared comes with it
            self._or_least(file, self._offset, self._buffers, self.end)
        else:
            if self.size > self._held:
                self._or_least(file, self._held, [], self._held)
            if self._buffers:
                file.write(self._offset, self._buffers)

    def _or_least(self, file: WriteBehindFile, offset: int, buffers: list[bytes], end: int) -> None:
        """Write, and zeros behind it to where the file is to end; without room for all of them as few as will do."""
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
        """Return the open file of a segment: it is not open after a start, nor after an attempt at a new segment."""
        if segment.file is None:
            segment.file = self._disk.open_lasting(segment.path)
        return segment.file

    def _cut(self, old: Segment) -> None:
        """Give back what was prepared behind the contents of a segment, durably: a crash must not exceed the cap."""
        file = self._file_of(old)
        is_cut = old.size > old.end
        if is_cut:
            file.truncate(old.end)
        self.old_size = old.end
        if self._fenced:
            with suppress(OSError):  # nothing is believed of this file any more but what was good before
                self._sync_file(old, file)
        elif is_cut or (self._cut_first and (old.redo or not self.syncs)):
            self._sync_file(old, file)

    def _close_old(self, old: Segment) -> None:
        if old.file is not None:
            old.file.close()
            old.file = None

    def _undo(self) -> bool:
        """Leave nothing of the batch where recovery would find it, also after a power cut; return whether that is so.

        The first bytes of a batch decide whether it is one. In a part that was not there before zeros do not do:
        cut off, they could come back with the next zeros that are prepared there.
        """
        file = self.segment.file
        try:
            if self.rolled:
                if file is not None:
                    file.truncate(self._held)
                    file.close()
                    self.segment.file = None
                if self.taken is None:
                    self._remove(self.segment.path)
                elif file is not None:
                    self._disk.rename(self.segment.path, self.taken.path)
                self._disk.sync_dir(self._directory)
            elif file is not None:
                head = min(BATCH_BYTES, self._held - self._offset)
                if head > 0:
                    file.write(self._offset, [bytes(head)])
                file.truncate(self._held)
                self._sync_file(self.segment, file)
        except OSError:
            return False
        return True

    def _tidy(self) -> None:
        """Remove what is no part of the log any more."""
        for path in self._remove_last:
            try:
                self._remove(path)
            except OSError:  # the next commit tries again
                self.unremoved |= {path}
        if self.erases and self._remove_last:
            with suppress(OSError):
                self._disk.sync_dir(self._directory)
        for path in self._aside:
            with suppress(OSError):  # it is no part of the log under either name
                self._disk.rename(path, path.removesuffix(SEGMENT_SUFFIX) + ASIDE_SUFFIX)
        if self._aside:  # under its old name recovery would take it for a left-over
            with suppress(OSError):
                self._disk.sync_dir(self._directory)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(path)

    def files_touched(self) -> dict[str, int]:
        """Return the files, with sizes, that may be left where they are if this failed."""
        files = dict(self._remove_first)
        if self.rolled and not self.is_undone:
            files[self.segment.path] = self.size
            if self.taken is not None:
                files[self.taken.path] = self.size
        return files


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment file."""
    return f"{directory}/{number:010d}{SEGMENT_SUFFIX}"


def reserve_path(directory: str) -> str:
    """Return the path of the reserve."""
    return f"{directory}/{RESERVE_NAME}"
