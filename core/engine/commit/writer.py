"""Group commit for one queue: everything that arrives while a commit is under way is written by the next one.

Each flush takes as much of the write queue as fits into one batch, which a worker thread writes. Nothing in the batch
is confirmed or delivered before the commit has succeeded.

If a commit fails, its publishes are refused, and the callers of its settles and releases get the error. The settles and
releases have taken effect in memory, so they are written again, to a new segment. If that commit fails too, the queue
refuses everything and tries again every second.

If the disk is full, publishes are refused and leave nothing on it. Settles are still written and confirmed, in the room
that is kept for them. Every second the writer checks whether there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.engine.commit.batch import Batch
from curbstone.core.engine.commit.publishes import NOTES_BYTES, Taken
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.compaction.relocate import CopySource
from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.pop import Pops
from curbstone.core.engine.log.commit import Commit
from curbstone.core.engine.log.format import BATCH_BYTES, ENTRY_BYTES
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import EXPIRY_BYTES, AtomicWrite
from curbstone.core.errors import CurbstoneError, QueueFull, Unavailable, client_text
from curbstone.core.values import EarlyAnswer, Space

RETRY_MS = 1000
NO_SPACE = "no space left on the disk"


class Writer:
    """The writing side of one queue."""

    __slots__ = (
        "_cleaner", "_dispatcher", "_early", "_end_batches", "_has_copied", "_is_troubled", "_log", "_needs_turn",
        "_parts", "_pops",
        "_started_us", "_state", "_sync_is_late", "_syncer", "_turn", "_unsynced", "_write_queue", "copy_source",
        "disk_is_full", "is_busy", "missed", "under_way",
    )  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        cleaner: Cleaner,
        dispatcher: Dispatcher,
        pops: Pops,
        end_batches: Callable[[list[bytes]], None],
        turn: Callable[[], object],
    ) -> None:
        """`end_batches(keys)` publishes the reports of complete batches of messages (see `core.batches`).

        `turn` is the turn of the queue, in which it delivers what is ready and calls `flush`.
        """
        self._parts = parts
        self._state = parts.state
        self._log = parts.log
        self._write_queue = parts.write_queue
        self._cleaner = cleaner
        self._dispatcher = dispatcher
        self._pops = pops
        self._end_batches = end_batches
        self._turn = turn
        self._syncer = parts.state.shared.syncer
        self.is_busy = False
        """Whether a commit or a sync is under way."""
        self.under_way: Batch | None = None
        """The batch that is being made or written, until its commit has failed, or is on disk and in the index."""
        self.disk_is_full = False
        """Whether only settles and releases are written, in the room that is kept for them."""
        self.missed = 0
        """Bytes that the last commit could not get because the disk was full."""
        self._is_troubled = False
        """Whether health reports that this queue can't write."""
        self._has_copied = False
        """Whether the last batch had copies, of the cleaner or an undo. Then the next one takes publishes first."""
        self._needs_turn = False
        """Whether the queue needs a turn when the commit under way has ended, because it has had a turn since it began,
        or because segments are to be dropped."""
        self._started_us = 0
        """When the commit under way was submitted."""
        self._early: EarlyAnswer | None = None
        """The answer to the only publish of the commit under way, if it may be sent early."""
        self._unsynced = False
        """Whether a sync is due; only if the server syncs at intervals."""
        self._sync_is_late = False
        """Whether the sync waits for the end of the commit under way."""
        self.copy_source: CopySource | None = None
        """A source of copies other than the cleaner, such as an undo; one at a time."""

    @property
    def owed_groups(self) -> set[str]:
        """The groups with settles that are not on disk yet."""
        records = self.under_way.records if self.under_way is not None else None
        written = records.settled if records is not None else ()
        return {name for name, _reason in [*self._write_queue.settles, *self._write_queue.ranges, *written]}

    @property
    def is_idle(self) -> bool:
        return not self.is_busy and self._write_queue.is_empty and self.copy_source is None

    @property
    def owes_nothing(self) -> bool:
        """Whether no commit is under way and nothing waits to be written."""
        return not (self.is_busy or self._write_queue.is_owed or self.copy_source is not None)

    def space(self) -> Space:
        state, room = self._state, self._log.room
        refused = state.refusals.last_minute(state.host.now_ms()) if state.refusals is not None else 0
        available = 0 if self.disk_is_full or state.publish_refusal() is not None else self._largest_message()
        return Space(room.kept_free + room.meta_bytes - state.meta_bytes, available, refused)

    def _largest_message(self) -> int:
        """Return the bytes of the largest body, without headers, that is accepted now, perhaps after cleaning."""
        state, room, index = self._state, self._log.room, self._parts.index
        size = room.largest_now(BATCH_BYTES + NOTES_BYTES)
        live = index.runs.bytes_live
        if state.options.drops_oldest:  # messages that are not in flight make room
            in_flight = sum([len(group.in_flight) for group in index.groups.values()])
            live = live * in_flight // max(room.pending, 1)
        if state.options.drops_oldest or self._cleaner.may_help_publish:
            size = max(size, room.largest_compacted(live + room.tries_bytes) - room.reserved)
        groups = 1 + len(state.meta.groups)
        return max(0, min(size - ENTRY_BYTES - EXPIRY_BYTES - RELEASE_BYTES * groups, state.options.max_message_size))

    def refuse_all(self, error: CurbstoneError) -> None:
        """Refuse the publishes, pops and callbacks that wait.

        Unless the queue has ended, promised publishes and callbacks that wait only for settles stay: settles are
        written again.
        """
        self._refuse_new(error)
        self._pops.refuse_all(error)
        write_queue = self._write_queue
        if self._state.is_closed:
            callbacks = write_queue.end(error)
        else:
            callbacks = [*write_queue.callbacks, *write_queue.take_waiting_for_room()]
            write_queue.callbacks = []
        for callback in callbacks:
            self._state.host.notify(callback, error)

    def abandon(self, error: CurbstoneError) -> None:
        """Refuse all of the batch under way, even what is or will be on disk: the queue has failed."""
        self._log.commit_ended()
        batch, self.under_way = self.under_way, None
        if batch is None:
            return
        for pop in batch.pops:
            self._state.host.notify(pop.on_done, error)
        for callback in (*batch.after_settles, *batch.callbacks):
            self._state.host.notify(callback, error)
        for part in batch.publishes.taken:
            # A promised publish that waits in the write queue again is refused there.
            if not (part.publish.must_not_fail and part.publish in self._write_queue.publishes):
                self._refuse_taken(part, error)

    def _refuse_new(self, error: CurbstoneError) -> None:
        """Refuse the publishes that wait, and the copies of another source than the cleaner."""
        self._refuse_publishes(error)
        self._fail_copies(error)

    def _refuse_publishes(self, error: CurbstoneError) -> None:
        publishes = self._write_queue.publishes
        waiting = list(publishes)
        publishes.clear()
        for publish in waiting:
            if publish.must_not_fail and not self._state.is_closed:
                publishes.append(publish)
            else:
                publish.abort()
                count = len(publish.messages) - publish.next
                self._state.refused(publish.refusal or error, count)
                self._state.host.notify(publish.on_done, publish.refusal or error, 0, count)

    def _refuse_taken(self, part: Taken, error: CurbstoneError) -> None:
        """Refuse the part of a publish that is in a batch, or if its answer was known before, give that answer."""
        if part.answer is not None:
            self._state.host.notify(part.publish.on_done, *part.answer, part.span)
            return
        part.publish.abort()
        self._state.refused(error, part.span)
        self._state.host.notify(part.publish.on_done, error, 0, part.span)

    # --- a commit

    def flush(self) -> None:
        """Make a batch of what waits and submit its commit, unless one is under way."""
        if self._sync_is_late and not self.is_busy:
            self._sync_now()
        if self.is_busy or self._state.is_closed:
            self._needs_turn = True
            return
        if self._state.write_failure:
            self._refuse_new(Unavailable(self._state.write_failure))
            return
        write_queue, is_cleaning = self._write_queue, self._cleaner.review()
        has_work = (
            write_queue.publishes
            or write_queue.must_write
            or not write_queue.is_empty
            or self.copy_source is not None
            or is_cleaning
            or (len(self._log.segments) > 1 and self._cleaner.droppable() > 0)
            or self._parts.index.has_unlogged_marks
        )
        if has_work and not (self._syncer.is_gathering and self._syncer.defer(self._parts.wakeups.turn)):
            self._begin_commit(is_cleaning)

    def _begin_commit(self, was_cleaning: bool) -> None:
        """`was_cleaning`: whether the cleaner has segments to clean before the batch is made."""
        state, write_queue, cleaner = self._state, self._write_queue, self._cleaner
        if write_queue.publishes:
            self._log.room.choose_segment_size(self._parts.index.runs.bytes_live)
        batch = Batch(self._parts, cleaner, self._dispatcher, self.missed, disk_is_full=self.disk_is_full)
        self.under_way = batch
        if write_queue.pops:
            self._pops.drop_unwanted()
        batch.take_records()
        # A batch has copies or publishes, because each may need all its room. They take turns, so that neither blocks
        # the other. While the disk is full it has neither: the room is kept for records.
        copies_wait = was_cleaning or self.copy_source is not None
        publishes_first = self._has_copied and bool(write_queue.publishes) and not self.disk_is_full
        can_copy = copies_wait and not publishes_first and not self.disk_is_full
        self._has_copied = can_copy and self._take_copies(batch, was_cleaning)
        if not self._has_copied and not self.disk_is_full:
            batch.take_publishes()
        commit = batch.commit()
        if commit is not None:
            self.is_busy = True
            self._needs_turn = was_cleaning
            self._started_us = state.host.now_us()
            ended = partial(state.host.contain, self._ended, commit)
            if self._syncer.is_gathering:
                self._syncer.submit(commit, ended)
            else:
                state.shared.host.submit(commit.run, ended, commit.durable_write)
                self._prepare(batch)
            return
        self.under_way = None
        self._respond(batch)
        cleaner.review()  # records may have found no room in this batch
        began_cleaning = cleaner.is_cleaning and not was_cleaning
        if (publishes_first and copies_wait) or began_cleaning:
            self._parts.wakeups.schedule()  # to make the next batch, which may have something to write
        if self.disk_is_full:
            self._refuse_new(QueueFull(NO_SPACE))

    def _prepare(self, batch: Batch) -> None:
        """Prepare the answer to a publish while it is written, if nothing else waits for the commit."""
        taken = batch.publishes.taken
        if len(taken) != 1 or batch.callbacks or batch.after_settles:
            return
        publish, _first, count, answer = taken[0]
        early = publish.early
        if early is not None and answer is None and count == len(publish.messages):
            self._early = early
            self._state.host.notify(early.prepare, publish.messages[0].seq)

    def _take_copies(self, batch: Batch, is_cleaning: bool) -> bool:
        """Take copies of the cleaner or, if it has none, of the other source, which needs the room it makes.

        Return False if there are none, or if they are being read from the disk.
        """
        if is_cleaning and batch.take_from(self._cleaner.relocation):
            return True
        return self.copy_source is not None and batch.take_from(self.copy_source)

    def _ended(self, commit: Commit, _result: object, error: BaseException | None) -> None:
        """Apply or undo the batch under way, whose commit has ended."""
        self.is_busy = False
        early, self._early = self._early, None
        if early is not None and error is None and self.under_way is not None:
            self._state.host.notify(early.send)
        if commit.doubt:
            self._syncer.keep(commit.doubt)
        batch = self.under_way
        if batch is None:  # the queue has failed meanwhile
            self._turn()
            return
        state, log = self._state, self._log
        commits = state.shared.commits
        state.stats.commits += 1
        if error is not None:
            commits.failed += 1
            self._commit_failed(batch, commit, error)
            return
        commits.took_us.add(state.host.now_us() - self._started_us)
        commits.messages.add(len(batch.publishes.messages))
        if not commit.redo and state.syncs:
            commits.syncs += 1
        log.succeeded(commit)
        if self._is_troubled and not self.disk_is_full:
            self._is_troubled = False
            self.missed = 0
            state.shared.alarms.over(state.label)
        self._apply(batch, commit)
        if log.room.excess:
            log.lower_excess()
        self.under_way = None
        self._respond(batch)
        if self._write_queue.waiting_for_room:
            for callback in self._write_queue.take_waiting_for_room():
                state.host.notify(callback, None)
        if not state.syncs:
            self._sync_later()
        if batch.records is not None or self._dispatcher.round_robins or self._leaves_work(commit):
            self._turn()

    def _leaves_work(self, commit: Commit) -> bool:
        """Return whether the queue needs a turn after a commit that only published, without receivers.

        Such a commit alone leaves nothing to deliver, drop or clean.
        """
        return (
            self._needs_turn
            or not self._write_queue.is_empty
            or commit.rolled
            or bool(commit.dropped)
            or self._sync_is_late
            or self._state.is_closed
            or self._log.room.excess > 0
            or self.copy_source is not None
        )

    def _respond(self, batch: Batch) -> None:
        """Respond, in order, to the callers of a batch that is on disk or has nothing to write."""
        for callback in batch.after_settles:
            self._state.host.notify(callback, None)
        for callback in batch.callbacks:
            self._state.host.notify(callback, None)
        for publish, first, count, answer in batch.publishes.taken:
            if isinstance(publish, AtomicWrite) and publish.reserved:
                self._log.room.give_back(publish.reserved)
            error, seq = answer or (None, publish.messages[first].seq if count else 0)
            self._state.host.notify(publish.on_done, error, seq, count)
        self._state.stats.duplicates += batch.publishes.left_out
        if self.copy_source is not None and self.copy_source.is_over:
            self.copy_source = None

    def copy_from(self, source: CopySource) -> None:
        """Write the copies of this source, in turns with publishes and after the copies of the cleaner."""
        self.copy_source = source
        self._parts.wakeups.schedule()

    def _fail_copies(self, error: CurbstoneError) -> None:
        """End the source of copies other than the cleaner, if there is one."""
        source, self.copy_source = self.copy_source, None
        if source is not None:
            self._state.host.notify(source.failed, error)

    def _apply(self, batch: Batch, commit: Commit) -> None:
        """Update the index, the facts and the counts for a batch that is on disk."""
        parts, state, segment = self._parts, self._state, commit.segment
        publishes, records = batch.publishes, batch.records
        if publishes.messages:
            size, traits, levels = publishes.bytes, publishes.traits, publishes.levels
            parts.index.add(publishes.messages, segment, batch.start, batch.end, size, traits, levels)
            if publishes.names is not None and publishes.names.replaced:
                publishes.names.settle()
            state.committed_end = publishes.messages[-1].seq + 1
            parts.wakeups.all_are_woken = True
        for write in publishes.atomic:
            self._end_deliveries(write)
        if batch.source is not None:
            batch.source.written(segment, batch.start, batch.end)
        if records is not None:
            if records.bytes and state.options.undo:
                self._cleaner.retention.settled()
            if records.tries:
                parts.index.stored(records.tries, segment)
        if commit.dropped:
            self._log.release_dropped(commit)
            self._cleaner.dropped()
        for level, mark in batch.marks.items():
            level.delivered_logged = mark
        if batch.facts.encoded:
            parts.facts.logged(batch.facts, segment.number)
        if parts.tallies is not None and (complete := parts.tallies.committed()):
            self._end_batches(complete)
        pops = records.pops if records is not None else []
        if pops or self._write_queue.pops:
            self._pops.written(pops)
        parts.wakeups.changed()

    def _end_deliveries(self, write: AtomicWrite) -> None:
        """End the deliveries that a transaction settles or requeues, which is on disk now."""
        for settle in write.settles:
            self._state.stats.acked += len(settle.deliveries) * settle.reason.is_done
            self._parts.index.clear(settle.group, [delivery.message for delivery in settle.deliveries])
            self._parts.wakeups.wake(settle.group)
        for release in write.releases:
            self._dispatcher.requeue.released(release)
        self._log.tx = write.tx or self._log.tx

    def _commit_failed(self, batch: Batch, commit: Commit, error: BaseException) -> None:
        """Confirm nothing of a batch, and queue again what must be written.

        | how it failed | what follows |
        |---|---|
        | disk full, nothing is left on it | records are tried again in the room that is kept; callers wait for that |
        | the same with only records in it | everything is refused for a second |
        | in doubt: it may be on disk | records are tried again in a new segment; their callers get the error |
        | the same in a new segment | everything is refused for a second |

        Publishes are refused in each case, which says that they are not confirmed: a crash may restore those that are
        on disk, until a new segment says that the log ends before them. A settle that is in doubt is never refused,
        because a crash may show it as done: its message stays settled in memory, and a pop waits until it is certain.
        """
        state, is_undone = self._state, commit.is_undone
        was_full, self.disk_is_full = self.disk_is_full, self.disk_is_full or (is_undone and not self._state.is_closed)
        text = f"the log can't be written: {client_text(error)}"
        answer: CurbstoneError = QueueFull(NO_SPACE) if is_undone else Unavailable(text)
        if not (is_undone and self._is_troubled):
            state.report(f"writing {commit.segment.path} failed: {error}")
        self._log.failed(commit)
        if batch.publishes.names is not None:
            batch.publishes.names.set_back()
        if self._parts.tallies is not None:
            self._parts.tallies.failed()
        self._write_again(batch)
        self._cleaner.relocation.failed(answer)
        self.under_way = None
        for callback in batch.after_settles:
            state.host.notify(callback, answer)
        if is_undone and not was_full and not state.is_closed:
            self._write_queue.callbacks = [*batch.callbacks, *self._write_queue.callbacks]
            self._write_queue.pop_first(batch.pops)
        else:
            self._pops.failed(batch.pops, answer, is_undone=is_undone)
            for callback in batch.callbacks:
                state.host.notify(callback, answer)
        for part in batch.publishes.taken:
            if not part.publish.must_not_fail:
                self._refuse_taken(part, answer)
        self._fail_copies(answer)
        if state.is_closed:
            self.refuse_all(state.refusal() or answer)
        elif was_full or (commit.rolled and not is_undone):
            self._refuse_for_a_while(text, answer, is_failure=not is_undone)
            return
        elif is_undone:
            self.missed = max(self.missed, commit.added)
            self._note_trouble(f"{NO_SPACE}; settling continues in the room that is kept for it")
            self._refuse_publishes(answer)
            state.host.call_later(RETRY_MS, self._try_publishes)
        self._turn()

    def _write_again(self, batch: Batch) -> None:
        """Put the settles, tries and promised publishes of a failed batch back in the write queue."""
        if batch.records is not None:
            batch.records.put_back()
        for part in reversed(batch.publishes.taken):
            if part.publish.must_not_fail:
                part.publish.next = 0
                self._write_queue.publishes.appendleft(part.publish)

    def _refuse_for_a_while(self, text: str, answer: CurbstoneError, *, is_failure: bool) -> None:
        """Refuse everything, then try a new segment."""
        self._state.write_failure = text
        self._note_trouble(text, is_failure=is_failure)
        self.refuse_all(answer)
        self._parts.wakeups.changed()
        self._state.host.call_later(RETRY_MS, self._try_again)

    def _note_trouble(self, text: str, *, is_failure: bool = False) -> None:
        self._is_troubled = True
        self._state.shared.alarms.note(self._state.label, text, is_failure=is_failure)

    def _try_publishes(self) -> None:
        """Check with the next batch whether the disk has room again."""
        if not self._state.write_failure and not self._state.is_closed:
            self.disk_is_full = False
            self._write_queue.must_write = True
            self._parts.wakeups.schedule()

    def _try_again(self) -> None:
        if self._state.is_closed:
            return
        self._state.write_failure = ""
        if not self.disk_is_full:  # the batch that failed may be on the disk, behind the last good one
            self._log.fenced = True
        self.disk_is_full = False
        self._write_queue.must_write = True
        self._turn()

    # --- sync modes

    def _sync_later(self) -> None:
        if not self._state.shared.sync.interval_ms or self._unsynced or self._state.is_private:
            return
        self._unsynced = True
        self._state.host.call_later(self._state.shared.sync.interval_ms, self._sync_now)

    def _sync_now(self) -> None:
        if self._state.is_closed:
            return
        if self.is_busy:  # the commit under way may begin a new segment, which is then the file to sync
            self._sync_is_late = True
            return
        self._unsynced = self._sync_is_late = False
        file = self._log.active.file
        if file is None or self._log.fenced:
            return
        self.is_busy = True

        def done(_: object, error: BaseException | None) -> None:
            self.is_busy = False
            if error is not None:
                self._state.report(f"syncing {self._log.active.path} failed: {error}")
                self._log.fenced = True
                self._write_queue.must_write = True
            else:
                self._state.shared.commits.syncs += 1
            self._turn()

        self._state.host.submit(file.sync, done)
