"""Runs the commits of all queues; those that are made in one turn are run by one job, with one sync for all of them.

A queue that is alone in its turn writes and syncs its own segment. The plain commits of several queues are written
together, as one record of a redo file; once that is synced, all of them are confirmed. They are written to their
segments later (see `write_behind`): when that part is read or written, or after a second. When the redo file is full,
the segments that it has something of are synced, so that it can be used again.

A commit that is not plain (it begins a segment, makes a file grow, or is large) is run by itself. So is every commit
while no redo file can be had: nothing that is promised depends on there being one. `docs/shared-sync.md` has the fault
model.

Commits of private queues, which no restart finds again, need no sync. They do not go into a redo file, but are written
to their segments later like those that do.

One job of several commits is under way at a time; commits that are made meanwhile gather for the next. A queue that has
something to write in a turn with others makes no batch while that job is under way, because its commit would only wait.
While the job runs, more work arrives for the queue, and all of it is written in one batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

from curbstone.core.engine.disk_alarms import DiskAlarms
from curbstone.core.engine.log.commit import Commit, Segment
from curbstone.core.engine.log.log import Salt
from curbstone.core.engine.syncer import Syncer
from curbstone.core.errors import Unavailable
from curbstone.core.host import Host, JobDone
from curbstone.core.stats import Commits
from curbstone.core.values import AllDone, Done
from curbstone.core.wal.redo_file import NoRedoFile, RedoFile, sync_segments
from curbstone.core.wal.redo_format import RECORDS_AT, Part, record_bytes
from curbstone.core.write_behind import WriteBehindDisk

REDO_BYTES = 16 * 1024 * 1024
FILES_MAX = 2
PLAIN_BYTES_MAX = 32 * 1024
"""A commit of more bytes is not worth writing twice, to a redo file and to its segment."""
REPORTED_AT_ONCE = 8
"""In one turn of the loop the ends of at least so many commits are reported, and as many deferred turns given."""
REPORT_US_MAX = 50_000
"""Each of the two continues for so long, if there are more: answers that are given in one turn are sent together."""
VOLATILE_BYTES_MAX = 16 * 1024 * 1024
"""Commits that need no sync are written later up to so many bytes, and beyond that at once."""
MAKE_AGAIN_MS = 60_000
CATCH_UP_MS = 1000
"""After so long the segments have what the redo files say of them, for those who copy the data directory as it is."""
SYNCED_AT_STOP_MAX = 32
"""A stop syncs at most so many segments for a redo file, because it has only seconds and a disk may be slow."""

logger = logging.getLogger("curbstone.core")

MATTER = "the redo files"


class CommitJob:
    """Commits that are run together by one job; `run` is called on a worker thread."""

    def __init__(self, commits: list[Commit], redo: RedoFile | None) -> None:
        self.commits = commits
        self.redo = redo
        self.redo_error: OSError | None = None
        self.errors: list[Exception | None] = [None] * len(commits)

    def run(self) -> None:
        """Make them durable together through the redo file, or each by itself if that fails."""
        commits = enumerate(self.commits)
        good = [n for n, commit in commits if commit.segment.file is not None or self._did(n, commit.open)]
        if self.redo is not None and len(good) > 1 and self._put_in(self.redo, [self.commits[n] for n in good]):
            return
        for n in good:
            if not self._did(n, self.commits[n].run) and self.redo is not None and self.redo.has_failed:
                self.commits[n].is_undone = False  # the redo file may hold it, though it failed

    def defer_all(self) -> None:
        """Have them written later, without making them durable."""
        for n, commit in enumerate(self.commits):
            self._did(n, partial(commit.defer, 0))

    def _put_in(self, redo: RedoFile, commits: list[Commit]) -> bool:
        """Write commits to the redo file and sync it; return whether that has made them durable."""
        try:
            buffers = [buffer for commit in commits for buffer in commit.buffers]
            redo.append([_part(commit) for commit in commits], buffers)
        except OSError as error:
            self.redo_error = error
            return False
        for commit in commits:
            commit.defer(redo.life)
        return True

    def _did(self, n: int, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # fails the commit of this queue only; those of others continue
            self.errors[n] = error
        return self.errors[n] is None


class SyncGroup(Syncer):
    def __init__(self, host: Host, disk: WriteBehindDisk, salt: Salt, alarms: DiskAlarms, commits: Commits) -> None:
        super().__init__()
        self._host = host
        self._disk = disk
        self._salt = salt
        self._alarms = alarms
        self._commits = commits
        self.file_bytes = REDO_BYTES
        self._turns = 0
        """How many turns are under way, one within another."""
        self._waiting: deque[tuple[Commit, JobDone]] = deque()
        self._without_sync: list[tuple[Commit, JobDone]] = []
        """Plain commits that need no sync."""
        self._volatile_jobs = 0
        """How many jobs with such commits are under way."""
        self._volatile_bytes = 0
        """Bytes of such commits that are not written to their segments yet, or were since this was last 0."""
        self._deferred: dict[Callable[[], object], None] = {}
        """Turns of queues to call when the job under way has ended, in order."""
        self._under_way: CommitJob | None = None
        self._ends: deque[tuple[JobDone, BaseException | None]] = deque()
        """Commits that have ended and are not reported yet."""
        self._is_reporting = False
        self._active: RedoFile | None = None
        self._resting: list[RedoFile] = []
        """Files with nothing in them that is still needed, to be used again."""
        self._retiring: list[RedoFile] = []
        """Files whose segments are being synced, or which are being removed."""
        self.files_made = 0
        """The number in the name of the redo file that was made last."""
        self._lives = 0
        self._make_after_ms = 0
        self._will_catch_up = False
        self._kept = ""
        """If not empty: why the redo files are kept until the next start, and nothing more is written to them."""

    @property
    def is_working(self) -> bool:
        commits = self._waiting or self._without_sync or self._volatile_jobs or self._under_way or self._ends
        return bool(commits or (self._retiring and not self._kept))

    # --- commits

    def submit(self, commit: Commit, done: JobDone) -> None:
        if not (self.is_gathering and commit.is_plain and commit.added <= PLAIN_BYTES_MAX):
            self._host.submit(commit.run, done)
        elif commit.is_durable:
            self._waiting.append((commit, done))
        else:
            self._without_sync.append((commit, done))

    def defer(self, turn: Callable[[], object]) -> bool:
        if self._under_way is None:
            return False
        self._deferred[turn] = None
        return True

    def begin_turn(self) -> None:
        self._turns += 1
        self.is_gathering = True

    def end_turn(self) -> None:
        self._turns -= 1
        self.is_gathering = self._turns > 0
        if self._without_sync and not self.is_gathering:
            self._run_volatile()
        self._run()

    def _run(self) -> None:
        waiting = self._waiting
        if self.is_gathering or not waiting:
            return
        if len(waiting) == 1:
            commit, done = waiting.popleft()
            self._host.submit(commit.run, done)
            return
        if self._under_way is not None:
            return
        taken, size = self._take()
        syncs = taken[0][0].syncs
        redo = self._file_for(size) if syncs else None
        if syncs and redo is None:
            for commit, done in taken:
                self._host.submit(commit.run, done)
            self._run()
            return
        job = self._under_way = CommitJob([commit for commit, _ in taken], redo)
        self._host.submit(job.run, partial(self._ended, job, [done for _, done in taken]))

    def _run_volatile(self) -> None:
        """Run the commits that need no sync, in one job, which mostly does nothing on the disk."""
        taken, self._without_sync = self._without_sync, []
        self._volatile_bytes += sum([commit.added for commit, _ in taken])
        job = CommitJob([commit for commit, _ in taken], None)
        self._volatile_jobs += 1

        def ended(_: object, error: BaseException | None) -> None:
            self._volatile_jobs -= 1
            errors = [error] * len(taken) if error else job.errors
            self._ends.extend(zip([done for _, done in taken], errors, strict=True))
            self._catch_up_later()
            if not self._is_reporting:
                self._report()

        self._host.submit(job.defer_all if self._volatile_bytes <= VOLATILE_BYTES_MAX else job.run, ended)

    def _take(self) -> tuple[list[tuple[Commit, JobDone]], int]:
        """Take as many waiting commits as go into one record; return them, and the bytes of that record."""
        taken: list[tuple[Commit, JobDone]] = []
        size = record_bytes(0, 0)
        most = (self.file_bytes - RECORDS_AT) // 4
        while self._waiting:
            more = record_bytes(1, self._waiting[0][0].added)
            if taken and size + more > most:
                break
            size += more
            taken.append(self._waiting.popleft())
        return taken, size

    def _ended(self, job: CommitJob, dones: list[JobDone], _: object, error: BaseException | None) -> None:
        self._under_way = None
        redo = job.redo
        if redo is not None:
            self._written(redo, job)
        errors = [error] * len(dones) if error else job.errors
        self._ends.extend(zip(dones, errors, strict=True))
        self._run()  # the next ones are written while these are reported
        if not self._is_reporting:
            self._report()

    def _written(self, redo: RedoFile, job: CommitJob) -> None:
        for commit in job.commits:
            if commit.redo:
                # Not when its end is reported: by then the file may be full, and its segments may have been synced.
                commit.segment.redo = commit.redo
                redo.touched[commit.segment] = None
                redo.uids.add(commit.uid)
        self._commits.syncs += any(commit.redo for commit in job.commits)
        self._catch_up_later()
        if any([commit.doubt for commit in job.commits]):  # first: from then on every file is kept
            self.keep("syncing a segment failed")
        if isinstance(job.redo_error, NoRedoFile):
            self._make_after_ms = self._host.now_ms() + MAKE_AGAIN_MS
            self._active = None if self._active is redo else self._active
            self._removed(redo, None)
            return
        if redo.has_failed or redo.is_to_remove:
            redo.is_to_remove = True
            self._retire(redo)

    def _report(self) -> None:
        """Report commits that have ended, then give deferred turns; if there are many, in several turns of the loop."""
        self._is_reporting = False
        self.begin_turn()
        end_us = self._host.now_us() + REPORT_US_MAX
        ends = self._ends
        while ends:
            for _ in range(min(len(ends), REPORTED_AT_ONCE)):
                done, error = ends.popleft()
                done(None, error)
            if self._host.now_us() >= end_us:
                break
        self._give_deferred()
        self.end_turn()
        if self._ends or (self._deferred and self._under_way is None):
            self._is_reporting = True
            self._host.call_soon(self._report)

    def _give_deferred(self) -> None:
        """Give queues the turns that were deferred, until time is up or the next job is under way."""
        end_us = self._host.now_us() + REPORT_US_MAX
        deferred = self._deferred
        while deferred and self._under_way is None:
            for turn in list(islice(deferred, REPORTED_AT_ONCE)):
                del deferred[turn]
                turn()
            if self._host.now_us() >= end_us:
                break

    def _catch_up_later(self) -> None:
        if not self._disk.late:
            self._volatile_bytes = 0
        if self._will_catch_up or not self._disk.late:
            return
        self._will_catch_up = True

        def done(_: object, error: BaseException | None) -> None:
            self._will_catch_up = False
            if error is None:
                self._volatile_bytes = 0
            else:
                logger.warning("commits that are in a redo file can't be written to their segments: %s", error)
            self._catch_up_later()

        self._host.call_later(CATCH_UP_MS, lambda: self._host.submit(self._disk.catch_up, done))

    # --- the files

    def _file_for(self, size: int) -> RedoFile | None:
        """Return the file for a record of so many bytes, or None if none can be had for now."""
        active = self._active
        if self._kept or size > self.file_bytes - RECORDS_AT:
            return None
        if active is not None and active.end + size <= active.size:
            return active
        if active is not None:
            self._retire(active)
        if self._resting:
            active = self._active = self._resting.pop()
        elif len(self._retiring) < FILES_MAX and self._host.now_ms() >= self._make_after_ms:
            self.files_made += 1
            active = self._active = RedoFile(self._disk, self.files_made, self.file_bytes, self._salt)
        else:
            return None
        self._lives += 1
        active.live(self._lives)
        return active

    def _retire(self, redo: RedoFile) -> None:
        """Write no more to a file, and sync the segments that it has something of; then reuse it, or remove it."""
        if self._active is redo:
            self._active = None
        if self._kept:
            self._report_removed(redo)
            return
        if redo.is_retiring or (self._under_way is not None and self._under_way.redo is redo):
            return  # it is being written to; `_written` retires it after that
        redo.is_retiring = True
        self._retiring.append(redo)
        segments = list(redo.touched)

        def done(failed: list[tuple[Segment, OSError]] | None, error: BaseException | None) -> None:
            # A segment that was closed meanwhile was synced before it was closed.
            lost = [each for segment, each in failed or () if segment.file is not None]
            if error is not None or lost:
                self.keep(f"syncing a segment failed: {error or lost[0]}")
            if self._kept:
                self._report_removed(redo)
                return
            for segment in segments:
                if segment.redo <= redo.life:
                    segment.redo = 0
            if redo.is_to_remove:
                self._remove(redo)
            else:
                self._retiring.remove(redo)
                self._resting.append(redo)

        self._host.submit(sync_segments(segments), done)

    def keep(self, text: str) -> None:
        """Keep the redo files until the next start has written them again: what was confirmed may be only there."""
        if self._kept:
            return
        self._kept = f"{text}; they are kept for the next start, which writes again what they have"
        if self._active is not None:
            self._retiring.append(self._active)
            self._active = None
        self._alarms.note(MATTER, self._kept, is_failure=True)
        for redo in [*self._retiring, *self._resting]:
            self._report_removed(redo)

    def _remove(self, redo: RedoFile) -> None:
        self._host.submit(redo.remove, lambda _, error: self._removed(redo, error))

    def _removed(self, redo: RedoFile, error: BaseException | None) -> None:
        if redo in self._retiring:
            self._retiring.remove(redo)
        self._report_removed(redo, error)

    def _report_removed(self, redo: RedoFile, error: BaseException | None = None) -> None:
        waiting, redo.removed = redo.removed, []
        text = self._kept or (f"a redo file can't be removed: {error}" if error else "")
        for on_done in waiting:
            on_done(Unavailable(text) if text else None)

    # --- erasing

    def erase(self, uid: int, on_done: Done) -> None:
        """Remove each redo file that may have something of a queue, then call `on_done(error)`."""
        found = self._files_of(uid)
        if not found or self._kept:
            on_done(self.erase_refusal(uid))
            return
        removed = AllDone(on_done, len(found))
        for redo in found:
            redo.removed.append(removed)
            self._remove_redo(redo)

    def erase_refusal(self, uid: int) -> Unavailable | None:
        return Unavailable(f"{MATTER}: {self._kept}") if self._kept and self._files_of(uid) else None

    def _files_of(self, uid: int) -> list[RedoFile]:
        writing = self._under_way.redo if self._under_way is not None else None
        files = [self._active, writing, *self._retiring, *self._resting]
        return list(dict.fromkeys(redo for redo in files if redo is not None and uid in redo.uids))

    def _remove_redo(self, redo: RedoFile) -> None:
        redo.is_to_remove = True
        if redo in self._resting:
            self._resting.remove(redo)
            self._retiring.append(redo)
            self._remove(redo)
        else:
            self._retire(redo)

    def clear(self) -> bool:
        """The server stops: remove the redo files that can be removed soon; the next start does it with the others.

        Return whether nothing is under way any more.
        """
        for redo in [self._active, *self._resting]:
            if redo is not None and not self._kept and len(redo.touched) <= SYNCED_AT_STOP_MAX:
                self._remove_redo(redo)
        return not self.is_working


def _part(commit: Commit) -> Part:
    """Return where a plain commit writes."""
    segment = commit.segment
    return Part(commit.uid, segment.number, segment.salt, commit.offset, commit.added)
