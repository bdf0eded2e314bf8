"""Applies the stream of a server to another disk, in order.

Each sync of the server is repeated here, and nothing after its end is applied before it is done. So after a crash this
disk always holds what the server's disk could have held after a crash at some earlier moment, and a server can start
on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from curbstone.access.tokens import DIRECTORY as ACCESS
from curbstone.core.disk import NO_SPACE, Disk, File
from curbstone.core.engine.directories import QUEUES
from curbstone.standby.copying import tree
from curbstone.standby.frames import BadFrame, Decoder, Frame, InSync, Kind, Sync, new_path
from curbstone.standby.scope import is_at_or_below, is_being_removed, is_shipped
from curbstone.standby.state_files import Position, StateFiles

_OF_DATA = frozenset({Kind.WRITE, Kind.TRUNCATE, Kind.BEGIN, Kind.END, Kind.TIME})
_OF_NAMES = frozenset({Kind.CREATE, Kind.MKDIR, Kind.RENAME, Kind.REMOVE, Kind.RMTREE, Kind.COPY_NAME})
_WAIT_FOR_SYNCS = frozenset(
    {
        *(Kind.RENAME, Kind.REMOVE, Kind.RMTREE),  # their files are closed
        *(Kind.COPY_BEGIN, Kind.COPY_LISTED, Kind.COPY_END),
    }
)


class SyncFailed(Exception):
    """A sync has failed. After `Applier.record_failure` a full copy has to be made, on a disk that works."""


class DiskFull(Exception):
    """A frame could not be written because the disk is full. `Applier.apply_waiting` retries it."""


class Syncs(Protocol):
    """Runs syncs."""

    def start(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        """Run a job, then `done` with its error; return a function that waits until both have returned."""


def run_sync(job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
    """Run a job, then `done` with its error."""
    try:
        job()
    except OSError as error:
        done(error)
    else:
        done(None)


class Applier:
    """See the module's docstring. `durable` may be read on any thread; all else is called on one, and blocks."""

    def __init__(self, disk: Disk, syncs: Syncs, files: StateFiles) -> None:
        self.state_files = files
        self.applied = 0
        """The position up to which the stream is applied."""
        self.time_ms = 0
        """The last wall clock that the server has sent."""
        self._disk = disk
        self._syncs = syncs
        self._files: dict[str, File] = {}
        self._life = 0
        self._decoder = Decoder(0)
        self._frames: deque[Frame] = deque()
        """Frames that are not applied yet."""
        self._replay_until = 0
        """Frames up to here may be applied for the second time; 0 for none. They are applied once all are received."""
        self._is_copying = False
        """Whether a copy has to be received first. Until it begins, the disk is unchanged."""
        self._listed: dict[str, int | None] = {}
        """During a copy: the directories (None), and the files with their sizes."""
        self._lock = threading.Lock()
        self._under_way: dict[int, tuple[int, Callable[[], None]]] = {}
        """Syncs in progress: the position before each, and the function that waits for it."""
        self._failure: OSError | None = None
        self._durable_before = 0
        """While it catches up: `durable` before it began."""
        self._is_first = True
        """Whether this process has not received anything yet."""

    @property
    def is_usable(self) -> bool:
        """Whether a server could start on the copy, once it is synced."""
        return self.state_files.state.is_complete and not (self._is_copying or self._replay_until or self._failure)

    @property
    def has_failed(self) -> bool:
        """Whether a sync has failed."""
        return self._failure is not None

    @property
    def durable(self) -> int:
        """The position up to which the stream is applied and synced; 0 while the copy is not usable."""
        with self._lock:
            if not self.is_usable:
                return 0
            if self.state_files.state.is_catching_up:
                return self._durable_before
            return min([before for before, _ in self._under_way.values()], default=self.applied)

    # --- connections

    def resume(self) -> Position:
        """Resume: frames are received from the position of the copy on. Only if `state_files.can_resume`.

        A new process first syncs everything: a sync in progress at the end of an earlier process was not completed.
        """
        if self._is_first:
            self._sync_now()
            self.state_files.change(is_catching_up=False)
        elif not self._is_copying:
            self._save_position(self.applied, self.applied)
        position = self.state_files.position
        assert self.state_files.can_resume and position is not None
        self._connect(position.life, position.applied)
        self._replay_until = position.at_most if position.at_most > position.applied else 0
        return position

    def begin(self, life: int, position: int) -> None:
        """Receive a full copy, and then the stream of a life from a position on."""
        self._connect(life, position)
        self._is_copying = True

    def _connect(self, life: int, position: int) -> None:
        self._is_first = self._is_copying = False
        self._replay_until = 0
        self._wait_for_syncs()
        self._close_files("")
        self._life = life
        self._decoder = Decoder(position)
        self._frames.clear()
        self._listed = {}
        self.applied = position

    def receive(self, data: bytes) -> None:
        """Apply received bytes. Raise BadFrame, DiskFull, SyncFailed or OSError."""
        self.apply_frames(self._decoder.feed(data))

    def apply_frames(self, frames: Iterable[Frame]) -> None:
        """Apply decoded frames. Raise what `receive` raises."""
        self._frames.extend(frames)
        self.apply_waiting()

    def apply_waiting(self) -> None:
        """Apply the frames that are not applied yet. Raise what `receive` raises."""
        try:
            self._apply_waiting()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(str(error)) from error
            raise

    def _apply_waiting(self) -> None:
        if self._replay_until:
            if not self._frames or self._frames[-1].end < self._replay_until:
                return
            self.state_files.change(is_complete=False)  # until the last one is applied, it is inconsistent
        while self._frames:
            run = self._next_frames()
            self._save_position(self.applied, run[-1].end)
            for frame in run:
                self._apply(frame)
                self._frames.popleft()
                self.applied = frame.end
            if run[0].kind not in _OF_DATA:
                self._save_position(self.applied, self.applied)
            if self._replay_until and self.applied >= self._replay_until:
                self._wait_for_syncs()
                self._sync_now()
                self.state_files.change(is_complete=True)
                self._replay_until = 0
        self._save_position(self.applied, self.applied)

    def _next_frames(self) -> list[Frame]:
        """Return the next frames that may be applied a second time together: one of a name, or several of data."""
        run: list[Frame] = []
        for frame in self._frames:
            if run and (frame.kind not in _OF_DATA or frame.start >= self._replay_until > 0):
                break
            run.append(frame)
            if frame.kind not in _OF_DATA:
                break
        return run

    def _save_position(self, applied: int, at_most: int) -> None:
        if self.state_files.state.is_complete and not self._is_copying:
            self.state_files.save_position(Position(self._life, applied, at_most))

    def catch_up(self) -> None:
        """Apply without syncs from now on, because the copy is too far behind to catch up with them.

        Only for a usable copy. Until `caught_up` nothing more is durable, and after a power cut it has to be compared.
        """
        self._wait_for_syncs()
        self._check_syncs()
        self._durable_before = self.durable
        self.state_files.change(is_catching_up=True)

    def caught_up(self) -> None:
        """Make everything durable, and apply with syncs again. Raise SyncFailed."""
        self._sync_now()
        self.state_files.change(is_catching_up=False)

    def close(self) -> None:
        """Wait for the syncs in progress, and close all files."""
        self._wait_for_syncs()
        self._close_files("")
        self.state_files.close()

    def promote(self, *, skips_ids: bool = False) -> None:
        """Make everything durable, and record that the directory is a server's from now on.

        `skips_ids`: whether clients may have seen ids that are missing here, so that they must not be reused.
        """
        self._wait_for_syncs()
        self._check_syncs()
        self._close_files("")
        self._sync_now()
        term = self.state_files.state.term + 1
        self.state_files.change(
            is_complete=False,
            is_catching_up=False,
            in_sync=InSync.NO,
            is_server=True,
            believed="",
            term=term,
            skips_ids=skips_ids,
        )

    def record_failure(self) -> None:
        """Record a failed sync durably. If this raises OSError it has to be retried."""
        if self._failure is not None:
            self.state_files.change(wants_full_copy=True)

    # --- frames

    def _apply(self, frame: Frame) -> None:
        self._check_syncs()
        self._check_path(frame)
        if frame.kind in _WAIT_FOR_SYNCS:
            self._wait_for_syncs()
            self._check_syncs()
        _APPLY[frame.kind](self, frame)

    def _check_path(self, frame: Frame) -> None:
        if frame.kind not in _APPLY:
            raise BadFrame(f"the stream has {frame.kind.name} where it is not allowed")
        is_fine = is_shipped(frame.path) or (frame.kind is Kind.RMTREE and is_being_removed(frame.path))
        if frame.kind in _OF_NAMES:
            is_fine &= bool(frame.path)
        if frame.kind is Kind.RENAME:
            new = new_path(frame)
            is_fine &= bool(new) and (is_shipped(new) or is_being_removed(new))
        if not is_fine:
            raise BadFrame(f"the stream changes {frame.path!r}, which is not replicated")

    def _write(self, frame: Frame) -> None:
        self._file(frame.path).write(frame.a, [frame.payload, bytes(frame.b)] if frame.b else [frame.payload])

    def _write_block(self, frame: Frame) -> None:
        """Write a block of a copy. Outside of one, it was missing here, or different from the server's."""
        if not self._is_copying:
            self._create_missing(frame.path)
        self._write(frame)
        if not self._is_copying:
            try:
                self._file(frame.path).sync()
            except OSError as error:
                with self._lock:
                    self._failure = self._failure or error
                self._check_syncs()

    def _create_missing(self, path: str) -> None:
        try:
            self._disk.open(path, create=True).close()
        except FileExistsError:
            return
        self._wait_for_syncs()  # of the missing file, which may still be open
        self._check_syncs()
        self._close_files(path)
        self._sync_names(path.rpartition("/")[0])

    def _truncate(self, frame: Frame) -> None:
        self._file(frame.path).truncate(frame.a)

    def _create(self, frame: Frame) -> None:
        try:
            self._disk.open(frame.path, create=True).close()
        except FileExistsError:  # an earlier process has applied it, and nothing after it
            self._file(frame.path).truncate(0)

    def _make_dir(self, frame: Frame) -> None:
        with suppress(FileExistsError):
            self._disk.make_dir(frame.path)

    def _rename(self, frame: Frame) -> None:
        new = new_path(frame)
        self._close_files(frame.path)
        self._close_files(new)
        with suppress(FileNotFoundError):
            self._disk.rename(frame.path, new)

    def _remove(self, frame: Frame) -> None:
        self._close_files(frame.path)
        with suppress(FileNotFoundError):
            self._disk.remove(frame.path)

    def _remove_tree(self, frame: Frame) -> None:
        self._close_files(frame.path)
        with suppress(FileNotFoundError):
            self._disk.remove_tree(frame.path)

    def _time(self, frame: Frame) -> None:
        self.time_ms = frame.a

    def _state(self, frame: Frame) -> None:
        try:
            in_sync = InSync(frame.flag)
        except ValueError:
            raise BadFrame(f"the stream has an unknown state of this copy: {frame.flag}") from None
        self.state_files.change(in_sync=in_sync, alone_after_ms=frame.a)

    def _file(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._disk.open_lasting(path)
        return file

    def _close_files(self, path: str) -> None:
        """Close the files at and below a path, which is going to belong to another file."""
        for each in [each for each in self._files if not path or is_at_or_below(each, path)]:
            self._files.pop(each).close()

    # --- syncs

    def _begin_sync(self, frame: Frame) -> None:
        if self.state_files.state.is_catching_up:
            return
        number, disk, path = frame.a, self._disk, frame.path
        if frame.flag == Sync.FILE:
            job = self._file(path).sync
        elif frame.flag == Sync.DIRECTORY:
            job = lambda: disk.sync_dir(path)  # noqa: E731
        else:
            job = self._sync_everything

        def done(error: OSError | None) -> None:
            with self._lock:
                if error is not None:
                    self._failure = error
                self._under_way.pop(number, None)

        with self._lock:
            self._under_way[number] = frame.start, lambda: None
        wait = self._syncs.start(job, done)
        with self._lock:
            if number in self._under_way:
                self._under_way[number] = frame.start, wait

    def _end_sync(self, frame: Frame) -> None:
        with self._lock:
            waiting = self._under_way.get(frame.a)
        if waiting is not None:
            waiting[1]()
            self._check_syncs()

    def _wait_for_syncs(self) -> None:
        with self._lock:
            waiting = [wait for _, wait in self._under_way.values()]
        for wait in waiting:
            wait()

    def _check_syncs(self) -> None:
        if self._failure is not None:
            raise SyncFailed(f"a sync failed: {self._failure.strerror}") from self._failure

    def _sync_now(self) -> None:
        """Sync everything. Raise SyncFailed."""
        with suppress(OSError):
            self._sync_everything()
        self._check_syncs()

    def _sync_names(self, path: str) -> None:
        """Make the names in a directory durable. Raise SyncFailed."""
        try:
            self._disk.sync_dir(path)
        except OSError as error:
            with self._lock:
                self._failure = self._failure or error
        self._check_syncs()

    def _sync_everything(self) -> None:
        """Sync all files and names, one by one if the system can't do it at once."""
        try:
            if self._disk.sync_all(""):
                return
            folders, files = tree(self._disk)
            for path in files:
                file = self._disk.open(path)
                try:
                    file.sync()
                finally:
                    file.close()
            for path in ["", *folders]:
                self._disk.sync_dir(path)
        except OSError as error:
            with self._lock:
                self._failure = self._failure or error
            raise

    # --- copies

    def _take_over(self, _frame: Frame) -> None:
        self.state_files.change(in_sync=InSync.HANDED_OVER)

    def _begin_copy(self, _frame: Frame) -> None:
        self.state_files.change(is_complete=False, in_sync=InSync.NO, is_catching_up=False)
        self._close_files("")
        self._listed = {}

    def _list(self, frame: Frame) -> None:
        self._listed[frame.path] = frame.a if frame.flag else None

    def _end_list(self, _frame: Frame) -> None:
        """Make the names equal to the list. Longer files are truncated; their contents follow later."""
        disk = self._disk
        folders, files = tree(disk)
        for path in files:
            if self._listed.get(path) is None:
                disk.remove(path)
        for path in reversed(folders):
            if self._listed.get(path, 0) is not None and path != ACCESS:  # it has the audit log of this machine
                disk.remove_tree(path)
        if QUEUES in folders:
            for name in disk.list_dir(QUEUES):
                if is_being_removed(f"{QUEUES}/{name}"):
                    disk.remove_tree(f"{QUEUES}/{name}")
            self._sync_names(QUEUES)  # before another directory takes a name that was freed here
        for path, size in self._listed.items():
            if size is None:
                with suppress(FileExistsError):
                    disk.make_dir(path)
            elif path not in files:
                disk.open(path, create=True).close()
            elif files[path] > size:
                self._file(path).truncate(size)

    def _end_copy(self, _frame: Frame) -> None:
        self._sync_now()
        self.state_files.save_position(Position(self._life, self.applied, self.applied))
        self.state_files.change(is_complete=True, wants_full_copy=False)
        self._is_copying = False


_APPLY: dict[Kind, Callable[[Applier, Frame], None]] = {
    Kind.WRITE: Applier._write,
    Kind.BEGIN: Applier._begin_sync,
    Kind.END: Applier._end_sync,
    Kind.TRUNCATE: Applier._truncate,
    Kind.CREATE: Applier._create,
    Kind.MKDIR: Applier._make_dir,
    Kind.RENAME: Applier._rename,
    Kind.REMOVE: Applier._remove,
    Kind.RMTREE: Applier._remove_tree,
    Kind.TIME: Applier._time,
    Kind.STATE: Applier._state,
    Kind.TAKE_OVER: Applier._take_over,
    Kind.COPY_BEGIN: Applier._begin_copy,
    Kind.COPY_NAME: Applier._list,
    Kind.COPY_LISTED: Applier._end_list,
    Kind.COPY_DATA: Applier._write_block,
    Kind.COPY_END: Applier._end_copy,
}
