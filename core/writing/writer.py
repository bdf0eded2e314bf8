"""Group commit: what arrived while the last commit was syncing goes into the next.

Publishes wait in a queue, settles and releases in lists. Each flush makes one batch of what fits,
hands it to a worker thread and, when that returns, confirms: nothing is confirmed or delivered
before. A failed commit confirms nothing: its publishes and pops are refused, its settles and releases
are written again, unconfirmed, to a new segment. Where that fails too the queue refuses everything and
tries again every second.

On a full disk publishes are refused, and nothing of them is left there. Settles are written, and
confirmed, in the room that was kept for them. Every second it is tried whether there is room again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.breakdown import contained, tell
from curbstone.core.errors import CurbstoneError, QueueFull, Unavailable
from curbstone.core.log.commit import Commit
from curbstone.core.log.format import Reason, Released
from curbstone.core.log.publish import Publish
from curbstone.core.values import Done
from curbstone.core.writing.batch import Batch, Taken

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

RETRY_MS = 1000
NO_SPACE = "no space left on the disk"


class Writer:
    """The writing side of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._inbox: deque[Publish] = deque()
        self._settled: dict[tuple[str, Reason], list[int]] = {}
        self._ranges: dict[tuple[str, Reason], list[tuple[int, int]]] = {}
        self._released: list[Released] = []
        self._handed: dict[tuple[str, int], Released] = {}
        self._callbacks: list[Done] = []
        self._busy = False
        self._under_way: Batch | None = None
        """What the commit that is made, or under way, is of; as long as nobody was answered."""
        self._failed_text = ""
        self.disk_is_full = False
        """Whether only settles are written, in the room that is kept for them."""
        self.missed = 0
        """Bytes for which there was no room on the disk."""
        self._is_troubled = False
        self._copy_next = False
        self._unsynced = False
        self.commits = 0

    # --- what is asked for

    @property
    def failure(self) -> str:
        """Why nothing can be written, or an empty text."""
        return self._failed_text or self._queue.broken

    @property
    def has_records(self) -> bool:
        """Whether settles or releases wait."""
        return bool(self._settled or self._ranges or self._released or self._handed or self._queue.popping.waiting)

    @property
    def owes_settles(self) -> bool:
        """Whether settles wait, whoever asked for them."""
        return bool(self._settled or self._ranges)

    @property
    def owed_groups(self) -> set[str]:
        """The groups of which settles are not on disk yet."""
        batch = self._under_way
        written = [*batch.settled, *batch.ranges] if batch is not None else []
        return {name for name, _reason in [*self._settled, *self._ranges, *written]}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way or waiting."""
        return not (self._busy or self._inbox or self._callbacks or self.has_records)

    @property
    def owes_nothing(self) -> bool:
        """Whether nobody waits for it. What is to be said of tries may wait for room in a full queue for ever."""
        waiting = self._inbox or self._settled or self._ranges or self._callbacks or self._queue.popping.waiting
        return not (self._busy or waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return self._busy

    def publish(self, publish: Publish) -> None:
        """Write messages when their turn comes."""
        self._inbox.append(publish)
        self._queue.dirty()

    def settled(self, group: str, reason: Reason, seqs: list[int]) -> None:
        """Write that messages are settled; `seqs` is the writer's from now on."""
        if not seqs:
            return
        key = (group, reason)
        waiting = self._settled.get(key)
        if waiting is None:
            self._settled[key] = seqs
        else:
            waiting += seqs
        self._queue.dirty()

    def settled_ranges(self, group: str, reason: Reason, ranges: list[tuple[int, int]]) -> None:
        """Write that many messages are settled, as (first, count)."""
        self._ranges.setdefault((group, reason), []).extend(ranges)
        self._queue.dirty()

    def released(self, released: Released) -> None:
        """Write that messages are ready again; nobody has them any more."""
        if self._handed:
            for seq in range(released.first, released.first + released.span):
                self._handed.pop((released.group, seq), None)
        if self._released:
            last = self._released[-1]
            if last.first + last.span == released.first and last._replace(first=0, span=0) == released._replace(
                first=0, span=0
            ):
                self._released[-1] = last._replace(span=last.span + released.span)
                return
        self._released.append(released)
        self._queue.dirty()

    def handed(self, state: Released) -> None:
        """Write how a message would stand after a crash: it was handed out, and not for the first time."""
        self._handed[state.group, state.first] = state
        self._queue.dirty()

    def when_committed(self, on_done: Done) -> None:
        """Call back when all that was asked for so far in settles and releases is on disk."""
        self._callbacks.append(on_done)
        self._queue.dirty()

    def refuse_all(self, error: CurbstoneError) -> None:
        """Refuse what waits to be written, but for what was promised; in a queue that has ended that, too."""
        self._refuse_publishes(error)
        self._queue.popping.refuse_all(error)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            tell(self._queue, callback, error)

    def abandon(self, error: CurbstoneError) -> None:
        """The queue broke down: answer all who wait, also for what is on its way to the disk, or there already."""
        batch, self._under_way = self._under_way, None
        if batch is None:
            return
        for pop in batch.pops:
            tell(self._queue, pop.on_done, error)
        for callback in batch.callbacks:
            tell(self._queue, callback, error)
        for publish, _first, count in batch.taken:
            if publish not in self._inbox:
                self._refuse_taken(publish, count, error)

    def _refuse_publishes(self, error: CurbstoneError) -> None:
        waiting = list(self._inbox)
        self._inbox.clear()
        for publish in waiting:
            if publish.is_promised and not self._queue.is_closed:
                self._inbox.append(publish)
            else:
                self._refuse(publish, error)

    def _refuse(self, publish: Publish, error: CurbstoneError) -> None:
        for end in publish.ends:
            end.undo(end.deliveries)
        tell(self._queue, publish.on_done, error, 0, len(publish.messages) - publish.next)

    def _refuse_taken(self, publish: Publish, count: int, error: CurbstoneError) -> None:
        """Refuse what of a publish was in a commit."""
        if publish.settles or publish.atomic_bytes or publish.refusal:
            publish.next = 0
            self._refuse(publish, error)
        else:
            tell(self._queue, publish.on_done, error, 0, count)

    # --- a commit

    def flush(self) -> None:
        """Write what waits, unless a commit is under way."""
        queue = self._queue
        if self._busy or self._failed_text or queue.is_closed:
            return
        if self.is_idle:
            queue.timers.housekeeping()
            if not queue.has_housekeeping:
                return
        log = queue.log
        batch = self._under_way = Batch(self, queue)
        was_cleaning = queue.cleaner.is_active
        copy = queue.cleaner.next_copy() if was_cleaning and not self.disk_is_full else None
        if copy is not None and not (self._inbox and self._copy_next):
            self._copy_next = True
            batch.take_records()
            batch.take_copy(copy)
        else:
            self._copy_next = False
            batch.take_records()
            if not self.disk_is_full:
                batch.take_publishes()
        commit = batch.commit()
        if commit is None:
            self._under_way = None
            if copy is not None or (queue.cleaner.is_active and not was_cleaning):
                self._copy_next = False
                queue.dirty()  # a publish has to wait, and it is the cleaner's turn
            if self.disk_is_full:
                self._refuse_publishes(QueueFull(NO_SPACE))
            return
        self._busy = True
        started_us = queue.host.now_us()

        def done(_: object, error: BaseException | None) -> None:
            self._busy = False
            if commit.is_doubtful:
                queue.broker.committer.keep(f"writing {commit.segment.path} failed: {error}")
            if queue.broken:
                return
            commits = queue.broker.commits
            queue.stats.commits += 1
            if error is None:
                commits.took_us.add(queue.host.now_us() - started_us)
                commits.messages.add(len(batch.messages))
                commits.syncs += queue.syncs_always and not commit.redo
                log.succeeded(commit)
                self._succeeded(batch, commit)
            else:
                commits.failed += 1
                self._commit_failed(batch, commit, error)

        queue.broker.committer.submit(commit, partial(contained, queue, done))

    def _succeeded(self, batch: Batch, commit: Commit) -> None:
        self.commits += 1
        queue = self._queue
        if self._is_troubled and not self.disk_is_full:
            self._is_troubled = False
            self.missed = 0
            queue.broker.troubles.over(queue.label)
        queue.committed(batch, commit)
        if queue.log.room.excess:
            queue.log.come_down()
        self._under_way = None
        for callback in batch.callbacks:
            tell(queue, callback, None)
        for part in batch.taken:
            self._answer(part)
        if not queue.syncs_always:
            self._sync_later()
        queue.dispatch_all()
        self.flush()

    def _answer(self, part: Taken) -> None:
        publish, first, count = part
        if publish.reserved:
            self._queue.log.room.give_back(publish.reserved)
        if publish.refusal is not None:
            tell(self._queue, publish.on_done, publish.refusal, 0, len(publish.messages))
        else:
            tell(self._queue, publish.on_done, None, publish.messages[first].seq if count else 0, count)

    def _commit_failed(self, batch: Batch, commit: Commit, error: BaseException) -> None:
        """Confirm nothing, and write on in a new segment; what was promised is kept.

        Where the disk was full nothing of it is there, so the segment stays good. What it held beside publishes
        is tried again alone, and only then answered.
        """
        queue = self._queue
        no_space = commit.is_undone
        text = f"writing {commit.segment.path} failed: {error}"
        answer: CurbstoneError = QueueFull(NO_SPACE) if no_space else Unavailable(text)
        if not (no_space and self._is_troubled):
            queue.report(text)
        queue.log.failed(commit)
        self._write_again(batch)
        queue.cleaner.failed()
        self._under_way = None
        if no_space and not self.disk_is_full and not queue.is_closed:
            self._callbacks = batch.callbacks + self._callbacks
            queue.popping.try_again(batch.pops)
        else:
            queue.popping.failed(batch.pops, answer, is_undone=no_space)
            for callback in batch.callbacks:
                tell(queue, callback, answer)
        for publish, _first, count in batch.taken:
            if publish.is_promised:
                continue
            self._refuse_taken(publish, count, answer)
        if queue.is_closed:
            self.refuse_all(queue.refusal() or answer)
            return
        if self.disk_is_full or (commit.rolled and not no_space):
            self._fail(text, answer)
            return
        if no_space:
            self.disk_is_full = True
            self.missed = max(self.missed, commit.added)
            self._trouble(f"{NO_SPACE}; settling goes on in the room that is kept for it")
            self._refuse_publishes(answer)
            queue.host.call_later(RETRY_MS, self._let_try)
        self.flush()

    def _write_again(self, batch: Batch) -> None:
        """Put back what must be written sooner or later, though it is not confirmed."""
        for key, seqs in batch.settled.items():
            self._settled.setdefault(key, []).extend(seqs)
        for key, ranges in batch.ranges.items():
            self._ranges.setdefault(key, []).extend(ranges)
        since = {(item.group, item.first + index) for item in self._released for index in range(item.span)}
        handed = {(item.group, item.first): item for item in batch.handed}
        self._handed = {key: item for key, item in handed.items() if key not in since} | self._handed
        self._released = batch.released + self._released
        for part in reversed(batch.taken):
            if part.publish.is_promised:
                part.publish.next = 0
                self._inbox.appendleft(part.publish)

    def _fail(self, text: str, answer: CurbstoneError) -> None:
        """Refuse everything for a while, then try a new segment."""
        self._failed_text = text
        self._trouble(text)
        self.refuse_all(answer)
        self._queue.changed()
        self._queue.host.call_later(RETRY_MS, self._try_again)

    def _trouble(self, text: str) -> None:
        self._is_troubled = True
        self._queue.broker.troubles.note(self._queue.label, text)

    def _let_try(self) -> None:
        """Find out whether there is room again on the disk."""
        if not self._failed_text and not self._queue.is_closed:
            self.disk_is_full = False
            self._queue.probe = True
            self._queue.dirty()

    def _try_again(self) -> None:
        if self._queue.is_closed:
            return
        self._failed_text = ""
        if not self.disk_is_full:  # then what failed may be on the disk
            self._queue.log.fenced = True
        self.disk_is_full = False
        self._queue.probe = True
        self.flush()

    # --- sync modes

    def _sync_later(self) -> None:
        queue = self._queue
        if not queue.sync.interval_ms or self._unsynced:
            return
        self._unsynced = True
        queue.host.call_later(queue.sync.interval_ms, self._sync_now)

    def _sync_now(self) -> None:
        queue = self._queue
        if queue.is_closed:
            return
        if self._busy:  # the file may be changed for another under way: sync behind it
            queue.host.call_later(1, self._sync_now)
            return
        self._unsynced = False
        file = queue.log.active.file
        if file is None or queue.log.fenced:
            return
        self._busy = True

        def done(_: object, error: BaseException | None) -> None:
            self._busy = False
            if error is not None:
                queue.report(f"syncing {queue.log.active.path} failed: {error}")
                queue.log.fenced = True
                queue.probe = True
            else:
                queue.broker.commits.syncs += 1
            self.flush()

        queue.host.submit(file.sync, done)
