"""A transaction over several queues, on its way to the disk.

It takes a place in the write queue of each queue, so whatever is published later is written behind it. When every
queue has granted it room, the journal is written. From then on the transaction has happened, and each queue writes its
part.
"""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.commit.unique_names import facts_bytes
from curbstone.core.engine.log.format import BATCH_BYTES, entry_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import AtomicWrite
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.events.events import LeaveOut
from curbstone.core.host import Host
from curbstone.core.message import flags_of
from curbstone.core.transactions.records import encode_part
from curbstone.core.transactions.tx_log import TxLog
from curbstone.core.values import Done, ignore


class Participant(AtomicWrite):
    """What a transaction does to one queue."""

    __slots__ = ("_leave_out", "_queue", "is_only_bound")

    def __init__(self, queue: Queue, leave_out: LeaveOut) -> None:
        super().__init__([], ignore, 0)
        self.is_only_bound = True
        """Whether it only gets messages of events, so that no client has named the queue."""
        self._queue = queue
        self._leave_out = leave_out

    def leave_out(self, error: CurbstoneError) -> bool:
        """Return whether the transaction continues without this queue (see `core.events.events.LeaveOut`)."""
        return self.is_only_bound and self._leave_out(self._queue, error)

    def measure(self) -> int:
        """Return the most bytes that its messages take in one batch, with records of their tries in each group.

        To be called when all messages are in it.
        """
        states = RELEASE_BYTES * sum(map(self._queue.index.entitled_count, self.messages))
        entries = sum(map(entry_bytes, self.messages)) + 16 * len(self.messages)
        self.atomic_bytes = BATCH_BYTES + entries + states + facts_bytes(self._queue.parts, self.messages)
        self.flags = flags_of(self.messages)
        return self.atomic_bytes

    def detach(self) -> None:
        """Drop the callbacks: they refer to the transaction, which refers to this, and it must leave no cycle."""
        self.on_done = ignore
        self.on_room = None


class MultiQueueCommit:
    def __init__(self, host: Host, tx_log: TxLog, participants: dict[Queue, Participant], on_done: Done) -> None:
        self._host = host
        self._tx_log = tx_log
        self._participants = participants
        self._on_done = on_done
        self._ended: set[Queue] = set()
        """The queues that have ended while the journal was written."""
        self._left = len(participants)
        self._has_ended = False
        self._tx = 0

    def begin(self) -> None:
        """Wait for room in every queue."""
        for queue, participant in self._participants.items():
            participant.on_done = partial(self._refused, queue)
            participant.on_room = self._room
            queue.write_queue.publish(participant)

    def _room(self) -> None:
        """One more queue has granted room, or is left out: when none is missing any more, write the journal."""
        self._left -= 1
        if self._left or self._has_ended:
            return
        if not self._participants:
            self._has_ended = True
            self._host.call_soon(lambda: self._on_done(None))
            return
        parts: dict[int, bytes] = {}
        for queue, participant in self._participants.items():
            uid = queue.log.uid
            members = participant.messages, participant.settles, participant.releases, participant.ended_batch
            parts[uid] = encode_part(uid, *members)
        tx = self._tx = self._tx_log.write(parts, self._decided)
        for participant in self._participants.values():
            participant.tx = tx

    def _refused(self, queue: Queue, error: CurbstoneError | None, _first: int, _count: int) -> None:
        """A queue has no room, can't write, or has ended (the only case while the journal is being written)."""
        participant = self._participants[queue]
        if participant.tx:
            self._ended.add(queue)
        elif error is not None and not self._has_ended:
            if not participant.leave_out(error):
                self._end(error)
                return
            del self._participants[queue]
            participant.detach()
            queue.log.room.give_back(participant.reserved)
            if not participant.has_room:  # else `_room` has been called for it, or is about to be
                self._room()

    def _end(self, error: CurbstoneError) -> None:
        """Give the transaction up: none of it happens, and deliveries that it would have ended are as before."""
        self._has_ended = True
        for queue, participant in self._participants.items():
            queue.log.room.give_back(participant.reserved)
            participant.reserved = 0
            participant.tx = 0
            participant.refusal = error
            participant.abort()
            participant.detach()
            queue.wakeups.schedule()
        self._host.call_soon(lambda: self._on_done(error))

    def _decided(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._left = len(self._participants)
        for queue, participant in self._participants.items():
            done = partial(self._part_done, queue.log.uid)
            if queue in self._ended:
                done(queue.refusal(), 0, 0)
                continue
            participant.on_room = None
            participant.on_done = done
            queue.wakeups.schedule()

    def _part_done(self, uid: int, error: CurbstoneError | None, _first: int, _count: int) -> None:
        if not isinstance(error, Unavailable):  # else the journal keeps the part, and the next start writes it
            self._tx_log.part_done(self._tx, uid)
        self._left -= 1
        if not self._left:
            for participant in self._participants.values():
                participant.detach()
            self._on_done(None)
