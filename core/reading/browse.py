"""Looking at what a queue holds, emptying it, and sending dead letters home."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core import headers
from curbstone.core.delivery.dead import without_provenance
from curbstone.core.delivery.waiters import Waiter
from curbstone.core.errors import BadRequest, CurbstoneError
from curbstone.core.log.format import Reason
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.pending.group import Group
from curbstone.core.pending.runs import UNNAMED, Run, ranges_of, seqs_of

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

REDRIVE_AT_ONCE = 100
STATES = ("rdy", "wip", "delayed")


class Peeked(NamedTuple):
    """A message as it stands in the queue."""

    message: Message
    state: str
    tries: int
    due_ms: int
    """Engine time when a delayed one is due, else 0."""


class Peek:
    """One look: walks the runs, reading what is not in memory, and answers once."""

    def __init__(
        self,
        queue: Queue,
        limit: int,
        after: int,
        state: str,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
    ) -> None:
        self._queue = queue
        self._limit = limit
        self._next = after + 1
        self._state = state
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
        for group in self._queue.pending.groups.values():
            if run.pending(group.name) >> (message.seq - run.first) & 1:
                state = _state(group, message.seq)
                if self._state in ("", state):
                    retry = group.retries.get(message.seq)
                    due_ms = retry.due_ms if retry else 0
                    self._found.append(Peeked(message, state, group.tries_of(message.seq), due_ms))
                return


def _state(group: Group, seq: int) -> str:
    if seq in group.wip:
        return "wip"
    return "delayed" if group.is_delayed(seq) else "rdy"


def purge(queue: Queue) -> int:
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
            group.pending -= bits.bit_count()
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


class Redrive:
    """Moves dead letters back where they came from, a few at a time, each few one transaction."""

    def __init__(
        self, queue: Queue, to: QueueName | None, limit: int, on_done: Callable[[CurbstoneError | None, int], None]
    ) -> None:
        self._queue = queue
        self._to = to
        self._left = limit
        self._moved = 0
        self._on_done = on_done
        self._passed: list[Delivery] = []

    def go_on(self) -> None:
        """Take the next few."""
        if self._left <= 0:
            self._finish(None)
            return
        Waiter.start(self._queue, UNNAMED, min(self._left, REDRIVE_AT_ONCE), 0, self._move)

    def _move(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            self._finish(None)
            return
        transaction = self._queue.broker.transaction()
        moving = []
        for delivery in deliveries:
            home = self._to or _home(delivery.message)
            if home is None or home == self._queue.name:
                self._passed.append(delivery)  # it never died: it stays, and is not looked at again now
                continue
            message = delivery.message
            target = self._queue.broker.ensure(home)
            transaction.publish(target, Message(message.body, without_provenance(message.headers)))
            moving.append(delivery)
        self._left -= len(deliveries)
        transaction.settle(self._queue, UNNAMED, moving, Reason.ACK, self._passed.extend)

        def done(error: CurbstoneError | None) -> None:
            if error is not None:
                self._finish(error)
                return
            self._moved += len(moving)
            self.go_on()

        transaction.commit(done)

    def _finish(self, error: CurbstoneError | None) -> None:
        self._queue.put_back(UNNAMED, self._passed)
        self._queue.host.call_soon(lambda: self._on_done(error, self._moved))


def _home(message: Message) -> QueueName | None:
    """Return the queue a dead letter came from, or None."""
    for name, value in headers.decode(message.headers):
        if name == "x-dead-queue":
            try:
                return parse_queue_name(value)
            except BadRequest:
                return None
    return None
