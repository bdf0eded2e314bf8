"""Looking at what a queue holds, and emptying it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.log.format import Reason
from curbstone.core.message import Message
from curbstone.core.pending.group import Group
from curbstone.core.pending.runs import Run, ranges_of, seqs_of
from curbstone.core.values import Peeked

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

STATES = ("rdy", "wip", "delayed")


class Peek:
    """One look: walks the runs, reading what is not in memory, and answers once."""

    def __init__(
        self,
        queue: Queue,
        limit: int,
        after: int,
        state: str,
        group: str | None,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
    ) -> None:
        self._queue = queue
        self._limit = limit
        self._next = after + 1
        self._state = state
        self._group = group
        self._on_done = on_done
        self._found: list[Peeked] = []

    def go_on(self) -> None:
        """Walk on until there is enough, or something has to be read first."""
        while len(self._found) < self._limit:
            run = self._queue.pending.runs.at_or_after(self._next)
            if run is None:
                break
            if run.messages is None:
                self._queue.pending.reader.load(run, self.go_on)
                return
            was_cached = self._queue.pending.reader.is_tail(run)
            self._look_at(run)
            if not was_cached:
                self._queue.pending.reader.forget(run)
        found = self._found
        self._queue.host.call_soon(lambda: self._on_done(found))

    def _look_at(self, run: Run) -> None:
        assert run.messages is not None
        skip = max(self._next - run.first, 0)
        for seq in seqs_of(run.first + skip, run.live() >> skip):
            if len(self._found) >= self._limit:
                return
            self._next = seq + 1
            message = run.messages[seq - run.first]
            if message is not None:
                self._add(run, message)
        self._next = run.last + 1

    def _add(self, run: Run, message: Message) -> None:
        for group in self._groups():
            if run.pending(group.name) >> (message.seq - run.first) & 1:
                state = _state(group, message.seq)
                if self._state in ("", state):
                    retry = group.retries.get(message.seq)
                    due_ms = retry.due_ms if retry else 0
                    self._found.append(Peeked(message, state, group.tries_of(message.seq), due_ms))
                return

    def _groups(self) -> Iterable[Group]:
        """Return the groups to look for, the first that a message is pending in counts."""
        groups = self._queue.pending.groups
        if self._group is None:
            return groups.values()
        return [groups[self._group]] if self._group in groups else []


def _state(group: Group, seq: int) -> str:
    if seq in group.wip:
        return "wip"
    return "delayed" if group.is_delayed(seq) else "rdy"


def purge(queue: Queue, on_done: Callable[[CurbstoneError | None, int], None]) -> None:
    """See `Queue.purge`."""
    refusal = queue.refusal()
    if refusal is not None:
        queue.host.call_soon(lambda: on_done(refusal, 0))
        return
    purged = _settle_all(queue)
    queue.changed()

    def settled(error: CurbstoneError | None) -> None:
        if error is not None:
            on_done(error, 0)
            return
        queue.cleaner.erase(queue.broker.committer.erasing(queue.log.uid, erased))
        queue.dirty()

    def erased(error: CurbstoneError | None) -> None:
        on_done(error, 0 if error else purged)

    queue.writer.when_committed(settled)


def _settle_all(queue: Queue) -> int:
    """Settle all that is rdy or delayed in every group; return how many messages."""
    purged = 0
    lost: dict[str, tuple[int, int]] = {}
    for run in list(queue.pending.runs):
        before = run.live()
        for group in queue.pending.groups.values():
            wip = sum(1 << (seq - run.first) for seq in group.wip if run.first <= seq <= run.last) if group.wip else 0
            bits = run.pending(group.name) & ~wip
            if not bits:
                continue
            run.set_pending(group.name, run.pending(group.name) & ~bits)
            group.pends(-bits.bit_count())
            lost[group.name] = (lost.get(group.name, (0, 0))[0] + bits.bit_count(), run.first + bits.bit_length())
            queue.writer.settled_ranges(group.name, Reason.PURGE, ranges_of(run.first, bits))
            if group.retries:
                for seq in seqs_of(run.first, bits):
                    group.forget(seq)
        gone = (before & ~run.live()).bit_count()
        if gone:
            purged += gone
            queue.pending.runs.shrink(run, run.bytes_live * gone // before.bit_count())
            queue.pending.drop_if_dead(run)
    for name, (count, end) in lost.items():  # what is handed out stays, and so the position of its group
        queue.reading.losses.add(name, count, min(end, queue.pending.groups[name].first_pending(end)))
    queue.stats.purged += purged
    return purged
