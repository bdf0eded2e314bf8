"""One batch: the contents of the next commit, and their bytes.

Records (`records`) are taken first; the room that they leave is for copies, of the cleaner or of another source, or for
publishes (`publishes`). This file makes the facts and the bytes of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from curbstone.core.engine.commit.publishes import Publishes
from curbstone.core.engine.commit.records import Records
from curbstone.core.engine.commit.unique_names import forget_before
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.compaction.relocate import Copy, CopySource
from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.facts.facts import EMPTY, Changes, put
from curbstone.core.engine.facts.kinds import (
    Dedup,
    encode_producer,
    encode_rank,
    encode_seq,
    encode_staged,
    rank_key,
)
from curbstone.core.engine.index.index import DELAYS, LEVELS
from curbstone.core.engine.index.level import Level
from curbstone.core.engine.log.commit import Commit
from curbstone.core.engine.log.format import (
    BATCH_BYTES,
    SEGMENT_BYTES,
    BatchHeader,
    Flag,
    Note,
    Reason,
    TriesRecord,
    encode_batch,
    encode_entries,
    encode_log_start,
    entry_bytes,
)
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import Pop
from curbstone.core.message import Message
from curbstone.core.values import Done

_NO_MARKS: Mapping[Level, int] = MappingProxyType({})


class Batch:
    """The contents of a batch. Most batches only publish a few messages: other objects are made when needed."""

    __slots__ = (
        "_cleaner", "_disk_is_full", "_dispatcher", "_empties", "_missed", "_parts", "after_settles", "callbacks",
        "copies", "end", "facts", "marks", "publishes", "records", "source", "start",
    )  # fmt: skip

    def __init__(
        self, parts: Parts, cleaner: Cleaner, dispatcher: Dispatcher, missed: int, *, disk_is_full: bool
    ) -> None:
        """`missed`: bytes that the last commit lacked on a full disk. While the disk is full, take only records."""
        self._parts = parts
        self._cleaner = cleaner
        self._dispatcher = dispatcher
        self._disk_is_full = disk_is_full
        self._missed = missed
        self.records: Records | None = None
        """The records of the batch; None if it has none."""
        self.publishes = Publishes(parts, cleaner)
        self.copies: Sequence[Message] = ()
        self._empties = False
        """Whether the oldest segment has no live messages once this batch is on disk."""
        self.source: CopySource | None = None
        """The source of the copies; None if there are none."""
        self.callbacks: Sequence[Done] = ()
        """Callbacks for when all earlier settles and releases are on disk."""
        self.after_settles: Sequence[Done] = ()
        """Callbacks for when all earlier settles are on disk."""
        self.marks = _NO_MARKS
        """By level of a group, the last seq that was delivered, or will be as soon as the batch is on disk."""
        self.facts = EMPTY
        self.start = 0
        self.end = 0

    @property
    def pops(self) -> list[Pop]:
        return self.records.pops if self.records is not None else []

    def _add_to(self) -> Records:
        """Return the records of the batch, to add some."""
        if self.records is None:
            self.records = Records(self._parts)
        return self.records

    # --- its contents

    def take_records(self) -> None:
        """Take settles and releases that wait and, if none is left, the callbacks that wait for them."""
        write_queue = self._parts.write_queue
        if write_queue.lazy_acks:
            write_queue.take_lazy_acks()
        is_left = write_queue.has_records
        if is_left:
            self._add_to().take()
            is_left = write_queue.has_records
        if write_queue.callbacks or write_queue.after_settles:
            self.callbacks, self.after_settles = write_queue.take_callbacks()
        taken = self.records is not None and self.records.bytes > 0
        self._cleaner.for_settles.recorded(taken=taken, left=is_left)

    def take_publishes(self) -> None:
        """Take the publishes that fit; atomic ones may bring records of their own."""
        self.publishes.take(self.records.bytes if self.records is not None else 0)
        if self.publishes.names is not None and self.publishes.names.replaced:
            self.publishes.names.add_records(self._add_to())
        for write in self.publishes.atomic:
            records = self._add_to()
            for settle in write.settles:
                records.settle(settle.group, settle.reason, [each.message.seq for each in settle.deliveries])
            for group, reason, seqs in write.records:
                records.settle(group, reason, seqs)
            if write.ended_batch:
                self._parts.count_batches().end(write.ended_batch)
            records.add_tries([record for release in write.releases for record in release.records])
            records.add_tries(write.released)

    def take_from(self, source: CopySource) -> bool:
        """Take the next copies of this source; return False if it has none for which there is room."""
        copy = source.next(self.records.bytes if self.records is not None else 0)
        if copy is not None:
            self.source = source
            self._take_copy(copy)
        return copy is not None

    def _take_copy(self, copy: Copy) -> None:
        """Take the messages of a copy, the groups that have settled them, and the records of tries."""
        self.copies = copy.messages
        records, tallies = self._add_to(), self._parts.tallies
        if tallies is not None:
            self.copies = tallies.copies_of(copy.messages)
        for group, seqs in self._parts.index.settled_of(copy.messages).items():
            if not group and tallies is not None:  # settles that are not in the log yet are counted later
                seqs = [seq for seq in seqs if not tallies.is_member(seq)]
            if group != copy.revived_in:
                records.settle(group, Reason.COPIED, seqs)
        records.repeat_tries(copy.repeated)
        records.add_tries([*copy.tries])
        self._empties = copy.is_last

    # --- the batch

    def commit(self) -> Commit | None:
        """Return the commit to run, or None if there is nothing to write."""
        parts, publishes, copies = self._parts, self.publishes, self.copies
        log, state = parts.log, parts.state
        drops, roll, recycles = self._cleaner.plan(emptied=self._empties)
        count = len(publishes.messages)
        has_records = self.records is not None and self.records.bytes
        if not (count or copies or has_records or drops or roll or self._has_more()):
            return None
        parts.write_queue.must_write = False
        if publishes.traits & DELAYS:
            self._add_delays()
        if publishes.traits & LEVELS:
            publishes.note_levels()
        notes = self._notes(drops)
        first_seq, entries, flags = state.next_seq, publishes.bytes, 0
        if copies:
            first_seq, entries, flags = copies[0].seq, sum(map(entry_bytes, copies)), int(Flag.COPY)
        sections: list[bytes] = []
        flags |= encode_entries(copies or publishes.messages, first_seq, sections)
        releases, settles = self.records.sections if self.records is not None else (b"", b"")
        length = BATCH_BYTES + entries + len(releases) + len(settles) + len(notes)
        if self._disk_is_full:
            roll |= log.has_file_for(length)
        elif length > log.room_in_active and log.active.end > SEGMENT_BYTES:
            roll = True
        commit = log.begin(
            sync=state.syncs,
            roll=roll,
            next_seq=state.next_seq,
            recycle=recycles,
            is_full=self._disk_is_full,
        )
        header = BatchHeader(
            length,
            flags,
            log.next_batch,
            publishes.messages[-1].timestamp_ms if count else state.host.wall_ms(),  # the same: it was read just now
            first_seq,
            self.marks.get(parts.index.unnamed.level, parts.index.unnamed.level.delivered_logged),
            publishes.tx or log.tx,
            len(copies) or count,
            len(releases),
            len(settles),
            len(notes),
        )
        log.next_batch += 1
        sections += (releases, settles, notes)
        self.start, self.end = commit.add(encode_batch(commit.segment.salt, header, sections), length)
        state.next_seq += count
        pending = log.room.pending + count * len(parts.index.groups)
        log.finish(commit, drops, None if self._disk_is_full else pending, self._missed)
        return commit

    def _has_more(self) -> bool:
        """Return whether to write a batch without messages and records, for example for a mark alone."""
        parts = self._parts
        publishes = self.publishes
        if publishes.tx or parts.write_queue.must_write:
            return True
        if parts.tallies is not None and parts.tallies.has_facts:
            return True
        if publishes.left_out and (publishes.atomic or publishes.numbering is not None):  # their facts are to be noted
            return True
        can_mark = parts.log.room.records_left > 0 and not self._disk_is_full
        return can_mark and parts.index.has_unlogged_marks

    def _add_delays(self) -> None:
        """Add a record of tries, with the time when it is due, for each message that is published with a delay."""
        delayed = [message for message in self.publishes.messages if message.delay_ms]
        now_ms = self._parts.state.host.now_ms()
        released = [
            TriesRecord(group, message.seq, 1, 0, now_ms + message.delay_ms)
            for message in delayed
            for group in self._parts.index.entitled(message)
        ]
        self._add_to().add_tries(sorted(released, key=lambda item: item.group), state=True)

    def _new_facts(self) -> Changes:
        facts: Changes = {}
        state, publishes = self._parts.state, self.publishes
        if publishes.names is not None:
            publishes.names.add_facts(facts)
        if publishes.numbering is not None:
            for producer, last in publishes.numbering.coming.items():
                put(facts, Note.PRODUCER, encode_producer(producer, last))
        for write in publishes.atomic:
            if write.mark is not None:
                put(facts, Note.STAGED, encode_staged(*write.mark))
            if write.key is not None:
                end_ms = state.host.now_ms() + round(state.options.idempotency_window * 1000)
                messages, key = write.messages, write.key
                put(facts, Note.KEY, Dedup(end_ms, messages[0].seq, len(messages), key.hashed, key.digest).encode())
        return facts

    def _notes(self, drops: int) -> bytes:
        """Return the notes of the batch: the start of the log once segments are dropped, and the facts."""
        facts, groups = self._parts.facts, self._parts.index.groups
        publishes, dispatcher = self.publishes, self._dispatcher
        has_facts = publishes.atomic or publishes.numbering is not None or publishes.names is not None
        new = self._new_facts() if has_facts else {}
        log_start = self._parts.log.segments[drops].number if drops else 0
        counted = self._parts.tallies.notes(new, log_start) if self._parts.tallies is not None else b""
        messages = len(publishes.messages)
        if publishes.names is not None and publishes.names.replaced:
            messages = 0  # it is unknown which of them will be delivered
        marks: dict[Level, int] = {}
        for group in groups.values():
            coming: dict[int, int] = {}
            if messages and dispatcher.round_robins and not group.rdy and not self._parts.state.passes_over:
                # Messages of this batch that are delivered as soon as it is on disk. The batch has their mark, so they
                # count as delivered after a crash right after the delivery. With levels it is known which messages
                # these are only if there is room for all.
                credit = min(dispatcher.credit(group.name, messages), messages)
                if not publishes.levels:
                    coming = {0: self._parts.state.next_seq + credit - 1} if credit else coming
                elif credit == messages:
                    coming = publishes.lasts
            for level in group.levels:
                mark = max(level.delivered, coming.get(level.number, 0))
                if mark > level.delivered_logged:
                    marks[level] = mark
                    if level.number:
                        put(new, Note.RANK, encode_rank(group.name, level.number, mark))
                    elif group.name:  # the mark of the unnamed group is in the header of every batch
                        put(new, Note.DELIVERED, encode_seq(group.name, mark))
        if marks:
            self.marks = marks
        if not drops:
            if new or facts.changed:
                self.facts = facts.pending(new, 0)
            return self.facts.encoded + counted
        facts.keep_only(Note.DELIVERED, {name.encode() for name in groups})
        ranks = [(level.number, group.name) for group in groups.values() for level in group.levels if level.number]
        facts.keep_only(Note.RANK, {rank_key(name, number) for number, name in ranks})
        if facts.count(Note.NAME):
            forget_before(self._parts, log_start)
        self.facts = facts.pending(new, log_start)
        return encode_log_start(log_start) + self.facts.encoded + counted
