"""A transaction over several queues, on its way to the disk.

It takes a place in the write queue of each queue, so whatever is published later is written behind it. When every
queue has granted it room, the journal is written. From then on the transaction has happened, and each queue writes its
part.
"""

from __future__ import annotations

from functools import partial

from curbstone.core.engine.commit.names import facts_bytes
from curbstone.core.engine.log.format import BATCH_BYTES, entry_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import SETTLE_BYTES, AtomicWrite, Release, Settle
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.events.events import LeaveOut
from curbstone.core.host import Host
from curbstone.core.message import Message
from curbstone.core.transactions.records import encode_part
from curbstone.core.transactions.tx_log import TxLog
from curbstone.core.values import Done


class Participant:
    """What a transaction does to one queue."""

    def __init__(self, queue: Queue, leave_out: LeaveOut) -> None:
        self.messages: list[Message] = []
        self.settles: list[Settle] = []
        self.releases: list[Release] = []
        self.batch = b""
        """The key of a batch that ends in the queue; empty if there is none."""
        self.is_only_bound = True
        """Whether it only gets messages of events, so that no client has named the queue."""
        self._queue = queue
        self._leave_out = leave_out

    def leave_out(self, error: CurbstoneError) -> bool:
        """Return whether the transaction continues without this queue (see `core.events.events.LeaveOut`)."""
        return self.is_only_bound and not self.ends and self._leave_out(self._queue, error)

    @property
    def size(self) -> int:
        """The most bytes that its messages take in one batch, with one record of the tries of each in each group."""
        states = RELEASE_BYTES * sum(map(self._queue.index.entitled_count, self.messages))
        entries = sum(map(entry_bytes, self.messages)) + 16 * len(self.messages)
        return BATCH_BYTES + entries + states + facts_bytes(self._queue.parts, self.messages)

    @property
    def ends(self) -> list[Settle | Release]:
        """The settles and releases of deliveries that it ends."""
        return [*self.settles, *self.releases]

    @property
    def ends_bytes(self) -> int:
        """The most bytes that its settles and releases take."""
        return SETTLE_BYTES * sum(len(end.deliveries) for end in self.ends)


class MultiQueueCommit:
    def __init__(self, host: Host, tx_log: TxLog, participants: dict[Queue, Participant], on_done: Done) -> None:
        self._host = host
        self._tx_log = tx_log
        self._participants = participants
        self._on_done = on_done
        self._places: dict[Queue, AtomicWrite] = {}
        self._left = len(participants)
        self._has_ended = False
        self._tx = 0

    def begin(self) -> None:
        """Wait for room in every queue."""
        for queue, participant in self._participants.items():
            place = AtomicWrite(participant.messages, partial(self._refused, queue), participant.size)
            place.on_room = self._room
            self._places[queue] = place
            queue.write_queue.publish(place)

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
            members = participant.messages, participant.settles, participant.releases, participant.batch
            parts[uid] = encode_part(uid, *members)
        tx = self._tx = self._tx_log.write(parts, self._decided)
        for place in self._places.values():
            place.tx = tx

    def _refused(self, queue: Queue, error: CurbstoneError | None, _first: int, _count: int) -> None:
        """A queue has no room, can't write, or has ended (the only case while the journal is being written)."""
        place = self._places[queue]
        if place.tx:
            del self._places[queue]
        elif error is not None and not self._has_ended:
            if not self._participants[queue].leave_out(error):
                self._end(error)
                return
            del self._places[queue], self._participants[queue]
            queue.log.room.give_back(place.reserved)
            if not place.has_room:  # else `_room` has been called for it, or is about to be
                self._room()

    def _end(self, error: CurbstoneError) -> None:
        """Give the transaction up: none of it happens, and deliveries that it would have ended are as before."""
        self._has_ended = True
        for queue, place in self._places.items():
            queue.log.room.give_back(place.reserved)
            place.reserved = 0
            place.tx = 0
            place.refusal = error
            queue.wakeups.schedule()
        for participant in self._participants.values():
            for end in participant.ends:
                end.undo(end.deliveries)
        self._host.call_soon(lambda: self._on_done(error))

    def _decided(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._left = len(self._participants)
        for queue, participant in self._participants.items():
            done = partial(self._part_done, queue.log.uid)
            place = self._places.get(queue)
            if place is None:  # the queue has ended meanwhile
                done(queue.refusal(), 0, 0)
                continue
            place.settles, place.releases, place.batch = participant.settles, participant.releases, participant.batch
            place.on_room = None
            place.on_done = done
            queue.wakeups.schedule()

    def _part_done(self, uid: int, error: CurbstoneError | None, _first: int, _count: int) -> None:
        if not isinstance(error, Unavailable):  # else the journal keeps the part, and the next start writes it
            self._tx_log.part_done(self._tx, uid)
        self._left -= 1
        if not self._left:
            self._on_done(None)
