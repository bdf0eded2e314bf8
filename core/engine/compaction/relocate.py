"""Copies from the oldest segment to the end of the log, before it is dropped: live messages, then records.

A message keeps its seq and its id. Its run in the index is moved when the copy is on disk, and not before. The batch
with the last of the copies also drops the segment: with a batch of its own for each drop, a log whose segments hold one
message each would grow with every turn over it.

A run is copied at once if it is no larger than a segment is meant to be. A larger one, of a batch that was written
when segments were larger, is copied in parts; what is copied and what is left are runs of their own then. So a turn
over the log leaves no segment that is larger than it is meant to be, unless a single message is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from curbstone.core.engine.index.copies import CopyBatch
from curbstone.core.engine.index.runs import Run, seqs_of
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.format import BATCH_BYTES, SEGMENT_BYTES, TriesRecord, entry_bytes
from curbstone.core.engine.log.room import PIECE_BYTES, RELEASE_BYTES
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message

COPY_BYTES_MAX = 128 * 1024


class Copy(NamedTuple):
    """What one batch copies: messages, and records of the tries of messages, which may lie in other segments."""

    messages: list[Message]
    repeated: list[TriesRecord]
    """Records that replace those of the oldest segment."""
    is_last: bool
    """Whether nothing else is left to copy from the oldest segment."""
    tries: Sequence[TriesRecord] = ()
    """Records that say how often the messages count as tried from now on."""
    revived_in: str | None = None
    """The group in which the messages are pending again, though it has settled them; None if there is none."""


class CopySource(Protocol):
    """Has messages written once more, a piece at a time: the cleaner's relocation, or an undo."""

    @property
    def is_over(self) -> bool:
        """Whether it has nothing more to copy, ever."""

    def next(self, taken_bytes: int) -> Copy | None:
        """Return what the next batch copies; `taken_bytes` is what its records take. None if that is nothing now."""

    def written(self, segment: Segment, start: int, end: int) -> None:
        """The copies are on disk, between these offsets."""

    def failed(self, error: CurbstoneError) -> None:
        """The commit has failed, or nothing can be written now."""


class Relocation:
    __slots__ = ("_asked", "_oldest", "_part", "_parts", "_todo", "_under_way")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._oldest: Segment | None = None
        self._todo: list[Run] = []
        """Runs of the oldest segment, the first at the end."""
        self._asked: dict[Run, None] = {}
        """Those of them that had to be read from the disk first."""
        self._under_way: list[tuple[Run, int]] = []
        """The runs that the commit under way copies, and how many bytes of each."""
        self._part: list[Message] = []
        """The messages that it copies of a run that is too large to be copied at once."""

    is_over = False

    def next(self, _taken_bytes: int) -> Copy | None:
        """Return what the next batch copies. None also if that must be read from the disk first."""
        if len(self._parts.log.segments) == 1:
            return None
        oldest = self._parts.log.segments[0]
        if not oldest.runs:
            return self._states_of(oldest) if oldest.tries_records else None
        todo = self._todo
        while todo and not self._is_left(todo[-1]):
            todo.pop()
        if self._oldest is not oldest or not todo:  # the second: runs may have been added there since
            self._oldest = oldest
            self._todo = sorted(self._parts.index.runs.in_segment(oldest), key=lambda run: run.offset, reverse=True)
            self._asked.clear()
        limit = min(COPY_BYTES_MAX, self._parts.log.room.segment_bytes - PIECE_BYTES)
        return None if self._must_read(limit) else self._messages_of(oldest, limit)

    def _is_left(self, run: Run) -> bool:
        return run.segment is self._oldest and bool(run.live())

    def _must_read(self, limit: int) -> bool:
        """Have all that is copied next read at once; return whether that is under way.

        If runs were copied one by one, as they are read, their messages would lie no closer together than before.
        """
        total = 0
        is_under_way = False
        for run in reversed(self._todo):
            is_missing = run.messages is None and self._is_left(run)
            if is_missing and (run not in self._asked or self._parts.index.reader.is_loading(run)):
                self._asked[run] = None
                self._parts.index.reader.load(run)  # also if it is being read for others: cleaning continues after that
                is_under_way = True
            total += run.end - run.offset
            if total >= limit:
                break
        return is_under_way

    def _states_of(self, oldest: Segment) -> Copy | None:
        """Return the records of the oldest segment that still count; they take no more room than was kept for them."""
        most = self._most_states(self._parts.log.records_span)
        if most <= 0:  # happens only if the cap was made smaller: the messages stay, but a crash forgets their tries
            for group in self._parts.index.groups.values():
                group.lose_records(oldest)
            return None
        states = self._states_in(oldest)
        is_last = len(states) <= most and sum([state.span for state in states]) == oldest.tries_records
        return Copy([], states[:most], is_last)

    def _states_in(self, oldest: Segment) -> list[TriesRecord]:
        return [state for group in self._parts.index.groups.values() for state in group.tries_records_in(oldest)]

    def _most_states(self, span: int, beside: int = 0) -> int:
        """Return how many records fit into `span` bytes of a batch, with `beside` bytes of messages in it."""
        free = self._parts.log.room.free - 4 * (SEGMENT_BYTES + BATCH_BYTES) - beside
        return min(COPY_BYTES_MAX, span, free) // RELEASE_BYTES

    def _messages_of(self, oldest: Segment, limit: int) -> Copy | None:
        copies: list[Message] = []
        self._under_way = []
        total = 0
        while self._todo and total < limit:
            run = self._todo[-1]
            if not self._is_left(run):
                self._todo.pop()
                continue
            if run.messages is None:
                if not copies:  # it was read, but had to make way in memory for others
                    self._parts.index.reader.load(run)
                break
            live = [run.messages[seq - run.first] for seq in seqs_of(run.first, run.live())]
            messages = [message for message in live if message is not None]
            size = sum(map(entry_bytes, messages))
            if size > limit and not copies and len(messages) > 1:
                self._part = _first_of(messages, limit)
                return Copy(self._part, [], False)
            if copies and (total + size > limit or messages[-1].seq - copies[0].seq >= 1 << 32):
                break
            copies += messages
            total += size
            self._under_way.append((run, size))
            self._todo.pop()
        copies.sort(key=lambda message: message.seq)
        states = self._states_in(oldest) if oldest.tries_records and not self._todo else []
        segment_bytes = self._parts.log.room.segment_bytes
        if len(states) > max(self._most_states(max(segment_bytes - total, segment_bytes // 8), total), 0):
            states = []
        # Runs that came into the segment since they were listed are copied by the next batch.
        has_all = not self._todo and oldest.runs == len(self._under_way)
        is_last = has_all and sum([state.span for state in states]) == oldest.tries_records
        return Copy(copies, states, is_last) if copies else None

    def written(self, segment: Segment, start: int, end: int) -> None:
        """The copies are on disk: have their runs point there."""
        for run, size in self._under_way:
            if run.live() and run.segment is not segment:
                self._parts.index.runs.move(run, segment, start, end, size)
        self._under_way = []
        if self._part:
            self._parts.index.split(self._part, CopyBatch(segment, start, end))
            self._part = []

    def failed(self, _error: CurbstoneError | None = None) -> None:
        """The commit failed: the runs stay where they are, and are copied again."""
        self._under_way = []
        self._part = []
        self._todo = []
        self._oldest = None


def _first_of(messages: list[Message], limit: int) -> list[Message]:
    """Return the first messages, at least one, of up to `limit` bytes in all."""
    total = 0
    for index, message in enumerate(messages):
        total += entry_bytes(message)
        if index and total > limit:
            return messages[:index]
    return messages
