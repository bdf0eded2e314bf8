"""Declared groups as readers that keep a position: they look at messages, and ack all of them up to some seq.

The position of a group is its first pending seq, so it needs no record of its own: a cumulative ack is one settle of
everything below. At the cap a group may give up messages instead of holding them (see `engine.compaction.eviction`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from curbstone.core.engine.commit.meta_writer import MetaWriter
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.runs import Run, ranges_of
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.log.room import release_bytes
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, Gone, NoSuchGroup, OtherReader, QueueFull
from curbstone.core.positions import (
    LATEST,
    Backlog,
    Event,
    Found,
    Frame,
    GroupInfo,
    Informed,
    ListDone,
    PageDone,
    ReadRequest,
    Since,
    Start,
    Stretch,
    Trace,
    Trail,
    Waited,
    Wanted,
)
from curbstone.core.reader.browse import Browse
from curbstone.core.reader.history import Reading, end_of, read_events, start_of
from curbstone.core.reader.seek import Wait, first_live, seek_by_bytes, seek_by_time
from curbstone.core.reader.trace import read_traces
from curbstone.core.values import Done

KNOWN_MAX = 16
"""The most ids of readers that are remembered for a group."""

T = TypeVar("T")


class ReadingGroups:
    """The declared groups of one queue. Implements `core.port_reading.Reading`."""

    __slots__ = ("_cleaner", "_fences", "_meta_writer", "_parts", "_store")

    def __init__(
        self,
        parts: Parts,
        cleaner: Cleaner,
        meta_writer: MetaWriter,
        store: Callable[[Meta, Done], None],
    ) -> None:
        """`store` writes a changed `Meta`."""
        self._parts = parts
        self._cleaner = cleaner
        self._meta_writer = meta_writer
        self._store = store
        self._fences: dict[str, Fencing] = {}

    @property
    def next(self) -> int:
        return self._parts.state.committed_end

    # --- looking

    def check_epoch(self, epoch: str | None) -> None:
        if epoch is not None and epoch != self._parts.state.uid:
            raise Conflict(f"the queue was made anew: its epoch is {self._parts.state.uid}, not {epoch[:80]}")

    def declared(self, name: str) -> Group:
        """Return a declared group; raise NoSuchGroup."""
        if name not in self._parts.state.meta.groups:
            raise NoSuchGroup(f"no group {name} is declared on queue {self._parts.state.name}")
        return self._parts.index.groups[name]

    def names(self) -> list[str]:
        return sorted(self._parts.state.meta.groups)

    def backlogs(self) -> list[Backlog]:
        declared = self._parts.state.meta.groups
        if len(self._parts.index.groups) == 1:  # most queues have only the unnamed one
            return []
        return [
            Backlog(name, group.rdy, len(group.in_flight), group.delayed, name in declared)
            for name, group in sorted(self._parts.index.groups.items())
            if name and (group.pending or name in declared)
        ]

    def infos(self) -> list[GroupInfo]:
        return [self.info(b.group) if b.declared else self._undeclared(b.group) for b in self.backlogs()]

    def _undeclared(self, name: str) -> GroupInfo:
        group = self._parts.index.groups[name]
        position = group.first_pending(self.next)
        return GroupInfo(name, self._parts.state.uid, position, self.next, 0, "hold", 0, group.pending, declared=False)

    def position(self, name: str) -> int:
        return self.declared(name).first_pending(self.next)

    def first(self) -> int:
        for run in self._parts.index.runs:
            if run.live():
                return first_live(run)
        return self.next

    def info(self, name: str) -> GroupInfo:
        group = self.declared(name)
        loss = self._parts.facts.loss(name)
        on_full = "skip" if name in self._parts.state.meta.skips else "hold"
        position = group.first_pending(self.next)
        return GroupInfo(
            name, self._parts.state.uid, position, self.next, loss.lost, on_full, loss.floor, group.pending
        )

    # --- declaring

    def declare(self, name: str, start: Start, skips: bool | None, on_done: Informed) -> None:
        """Declare a group that begins at `start`; if it is declared already, change what it does at the cap.

        `on_done` is called when that is on disk, or with an error: BadRequest if the start is behind the end, or if
        there would be too many groups.
        """
        stored = self._informing(name, on_done)

        def proceed(error: CurbstoneError | None) -> None:
            """All records of an earlier group of that name are on disk, before the batch from which this one counts."""
            if error is not None or name in self._parts.state.meta.groups:
                self._change(name, skips, stored, error)
            elif isinstance(start, Since):
                seek_by_time(
                    self._parts, start.timestamp_ms, lambda failed, seq: self._found(name, seq, skips, stored, failed)
                )
            else:
                self._found(name, self._seq_of(start), skips, stored, None)

        def opened(error: CurbstoneError | None) -> None:
            if error is not None:
                stored(error)
            else:
                self._parts.write_queue.when_committed(proceed)

        refusal = self._parts.state.refusal()
        if refusal is not None:
            self._parts.state.host.call_soon(lambda: stored(refusal))
        else:
            self._meta_writer.when_open(opened)

    def _informing(self, name: str, on_done: Informed) -> Done:
        """Return a callback that calls `on_done` with an info about a group, unless there is an error or no group."""

        def done(error: CurbstoneError | None) -> None:
            on_done(error, self.info(name) if error is None and self.is_declared(name) else None)

        return done

    def _seq_of(self, start: Start) -> int:
        if start == LATEST:
            return self.next
        return start if isinstance(start, int) else 0

    def _change(self, name: str, skips: bool | None, stored: Callable[..., None], error: CurbstoneError | None) -> None:
        meta = self._parts.state.meta
        wanted = name in meta.skips if skips is None else skips
        if error is None and wanted != (name in meta.skips):
            changed = meta.with_group(name, 0, 0, skips=wanted)
            self._store(changed, stored)
        elif error is None:
            self._store(meta, stored)  # its callback follows a declaration that is still being written
        else:
            stored(error)

    def _found(
        self,
        name: str,
        first: int,
        skips: bool | None,
        stored: Callable[..., None],
        error: CurbstoneError | None,
        last_segment: int = 0,
    ) -> None:
        """Declare a group that sees the live messages from `first` on.

        If the cleaner has to make room, try again until it has, or until the segments up to `last_segment` are gone.
        """
        if error is None and first > self.next:
            error = BadRequest(f"bad start {first}: the queue's next message is {self.next}")
        if error is None and name in self._parts.state.meta.groups:  # declared by another call meanwhile
            self._change(name, skips, stored, None)
            return
        try:
            if error is not None:
                raise error
            last_segment = last_segment or self._parts.log.active.number
            if not self._has_room(name, first, last_segment):
                again = partial(self._found, name, first, skips, stored)
                self._parts.write_queue.wait_for_room(lambda failed: again(failed, last_segment))
                return
            # It is entitled to all messages but those that name other groups; what it is not to see is settled for it.
            start = self.next if first == self.next else 1
            meta = self._parts.state.meta.with_group(name, start, self._parts.log.next_batch, skips=bool(skips))
            self._fences.pop(name, None)
            self._store(meta, stored)
        except CurbstoneError as refusal:
            stored(refusal)
            return
        self._admit(self._parts.index.group(name), first)
        self._meta_writer.settle_first()
        self._parts.wakeups.wake(name)
        self._parts.wakeups.changed()

    def _has_room(self, name: str, first: int, last_segment: int) -> bool:
        """Return whether there is room for a record of the tries of each message that the group will hold.

        If not, the cleaner has begun to make some. Raise QueueFull if it can't.
        """
        group = self._parts.index.groups.get(name)
        count = sum(_seen(run, first).bit_count() for run in self._parts.index.runs) - (group.pending if group else 0)
        size = release_bytes(count)
        if count <= 0 or self._parts.log.room.can_keep(size):
            return True
        if self._parts.log.segments[0].number <= last_segment and self._cleaner.clean_for(size, 0):
            return False
        raise QueueFull(f"queue {self._parts.state.name} has no room for one more group to hold {count} messages")

    def _admit(self, group: Group, first: int) -> None:
        """Make the live messages from `first` on pending in a group, and settle everything else for it."""
        absent: list[tuple[int, int]] = []
        end = 1
        for run in self._parts.index.runs:
            seen = _seen(run, first)
            pending = run.pending(group.name)
            run.set_pending(group.name, pending | seen)
            group.pends((seen & ~pending).bit_count())
            if run.ranked:
                group.count_levels(run, seen & ~pending, 1)
            for start, count in ranges_of(run.first, pending | seen):
                if start > end:
                    absent.append((end, start - end))
                end = start + count
        if self.next > end:
            absent.append((end, self.next - end))
        if absent:
            self._parts.write_queue.settled_ranges(group.name, Reason.ABSENT, absent)
        group.rewind()

    # --- being done

    def ack_to(self, name: str, seq: int, on_done: Informed, reader: str = "") -> None:
        """Settle everything of a group up to and including `seq`; `on_done` is called when that is on disk.

        Raise NoSuchGroup, BadRequest if there is no such seq yet, and OtherReader if a `reader` is given and does not
        have the group.
        """
        group = self.declared(name)
        if seq >= self.next:
            raise BadRequest(f"bad upTo {seq}: the queue's next message is {self.next}")
        refusal = self._parts.state.refusal()
        if refusal is not None:
            self._parts.state.host.call_soon(lambda: on_done(refusal, None))
            return
        if reader:
            self._fences.setdefault(name, Fencing()).ack(name, reader, seq, self._parts.facts.acked(name))
        position = group.first_pending(self.next)
        if seq >= position:
            self._parts.facts.ack(name, seq)
            self._parts.state.stats.acked += self._parts.index.clear_below(group, seq + 1)
            self._parts.write_queue.settled_ranges(name, Reason.ACK, [(position, seq + 1 - position)])
            self._parts.wakeups.wake(name)
            self._parts.wakeups.changed()

        done = self._informing(name, on_done)

        def settled(error: CurbstoneError | None) -> None:
            if error is None and self._meta_writer.is_behind:  # the declaration of the group must be on disk, too
                self._meta_writer.store(self._parts.state.meta.encode(), self._parts.state.options.cap, done)
            else:
                done(error)

        self._parts.write_queue.when_committed(settled)

    # --- by position

    def is_declared(self, name: str) -> bool:
        return name in self._parts.state.meta.groups

    def floor(self, name: str) -> int:
        self.declared(name)
        return self._parts.facts.loss(name).floor

    def find_time(self, timestamp_ms: int, on_done: Found) -> None:
        seek_by_time(self._parts, timestamp_ms, on_done)

    def wait_for(self, seq: int, wait_ms: int, on_done: Waited) -> Wait:
        return Wait(self._parts, lambda: self.next > seq, wait_ms, on_done)

    def stretch(self, group: str, first: int, bytes_max: int) -> Stretch:
        return seek_by_bytes(self._parts, group, first, bytes_max)

    def browse(self, wanted: Wanted, render: Callable[[list[Frame]], T], on_done: PageDone[T]) -> None:
        """Read one page. Raise NoSuchGroup, or Gone if wanted messages are lost.

        The members of Gone are the `first` seq that there is, the `epoch`, and how many are `lost`.
        """
        if wanted.group is None:
            first = floor = self.first()
            lost = 0
        else:
            first = self.position(wanted.group)
            floor, lost = self._parts.facts.loss(wanted.group)
        if wanted.start < floor:
            text = f"messages {wanted.start} to {floor - 1} are no longer in the log; continue at {first}"
            raise Gone(text, first=first, epoch=self._parts.state.uid, lost=lost)
        Browse(self._parts, wanted, render, on_done).attempt()

    @property
    def events_start(self) -> int:
        return start_of(self._parts.log)

    @property
    def events_end(self) -> int:
        return end_of(self._parts.log)

    def events(self, asked: ReadRequest, render: Callable[[list[Event]], bytes], on_done: ListDone[bytes]) -> None:
        read = partial(read_events, self._parts.log.disk, asked, render)
        Reading(self._parts, asked.position, read, on_done).attempt()

    def traces(self, position: int, trail: Trail, on_done: ListDone[Trace]) -> None:
        Reading(self._parts, position, partial(read_traces, self._parts.log.disk, trail), on_done).attempt()

    def wait_for_events(self, position: int, wait_ms: int, on_done: Waited) -> Wait:
        return Wait(self._parts, lambda: self.events_end > position, wait_ms, on_done)


class Fencing:
    """Notices when two programs read as one declared group at once: each ack may name its reader by an id.

    The reader that came last has the group. A reader that returns after another has taken over is refused, and so is
    a new one whose position is behind what the group was acked up to: both would miss what the other was given.

    The ids are kept in memory only. After a restart the first reader that acks has the group, and two at once are
    noticed again. The log says up to where a group was acked, so a reader with an old position is always refused.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []

    def ack(self, group: str, reader: str, seq: int, acked: int) -> None:
        """Note that a reader is done with everything up to `seq`; so far the group was acked up to `acked`.

        Raise OtherReader if the reader neither has the group nor can take it over.
        """
        if reader not in self._ids[-1:]:
            if reader in self._ids:
                raise OtherReader(f"another reader has taken over group {group}")
            if seq < acked:
                text = f"another reader of group {group} is done up to {acked}, this one up to {seq}"
                raise OtherReader(text, acked=acked)
            self._ids = [*self._ids[1 - KNOWN_MAX :], reader]


def _seen(run: Run, first: int) -> int:
    """Return the mask of the messages of a run that a group that begins at `first` sees."""
    return run.live() & ~run.naming & run.part(first, run.last + 1)
