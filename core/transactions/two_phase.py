"""A transaction over several queues, on its way to the disk.

It takes a place in the write queue of each queue, so whatever is published later is written behind it. When every
queue has granted it room, the journal is written. From then on the transaction has happened, and each queue writes its
part.
"""

from __future__ import annotations

from functools import partial
from typing import Generic, Protocol, TypeVar

from curbstone.core.engine.log.log import Log
from curbstone.core.engine.turns import Wakeups
from curbstone.core.engine.write_queue import AtomicWrite, Release, Settle, WriteQueue
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Host
from curbstone.core.message import Message
from curbstone.core.transactions.records import encode_part
from curbstone.core.transactions.tx_log import Journal
from curbstone.core.values import Done


class Member(Protocol):
    """A queue that takes part in the transaction."""

    log: Log
    wakeups: Wakeups
    write_queue: WriteQueue

    def refusal(self) -> CurbstoneError | None:
        """Return why nothing can be written there now, or None."""


class Share(Protocol):
    """What the transaction does to one queue."""

    messages: list[Message]
    settles: list[Settle]
    releases: list[Release]

    @property
    def size(self) -> int:
        """The most bytes that its batch takes, with the records of its messages' tries that may follow."""

    @property
    def ends(self) -> list[Settle | Release]:
        """The deliveries that it ends."""

    def may_miss(self, error: CurbstoneError) -> bool:
        """Return whether the transaction goes on without this queue if it refuses with `error`."""


Q = TypeVar("Q", bound=Member)
S = TypeVar("S", bound=Share)


class Spread(Generic[Q, S]):
    def __init__(self, host: Host, journal: Journal, shares: dict[Q, S], on_done: Done) -> None:
        self._host = host
        self._journal = journal
        self._shares = shares
        self._on_done = on_done
        self._places: dict[Q, AtomicWrite] = {}
        self._left = len(shares)
        self._has_ended = False
        self._tx = 0

    def begin(self) -> None:
        """Wait for room in every queue."""
        for queue, share in self._shares.items():
            place = AtomicWrite(share.messages, partial(self._refused, queue), share.size)
            place.on_room = self._room
            self._places[queue] = place
            queue.write_queue.publish(place)

    def _room(self) -> None:
        """One more queue has granted room, or is left out: when none is missing any more, write the journal."""
        self._left -= 1
        if self._left or self._has_ended:
            return
        if not self._shares:
            self._has_ended = True
            self._host.call_soon(lambda: self._on_done(None))
            return
        parts: dict[int, bytes] = {}
        for queue, share in self._shares.items():
            uid = queue.log.uid
            parts[uid] = encode_part(uid, share.messages, share.settles, share.releases)
        tx = self._tx = self._journal.write(parts, self._journaled)
        for place in self._places.values():
            place.tx = tx

    def _refused(self, queue: Q, error: CurbstoneError | None, _first: int, _count: int) -> None:
        """A queue has no room, can't write, or has ended. Only the end can come while the journal is being written."""
        place = self._places[queue]
        if place.tx:
            del self._places[queue]
        elif error is not None and not self._has_ended:
            if not self._shares[queue].may_miss(error):
                self._end(error)
                return
            del self._places[queue], self._shares[queue]
            queue.log.room.give_back(place.reserved)
            if not place.has_room:  # else `_room` has been called for it, or is about to be
                self._room()

    def _end(self, error: CurbstoneError) -> None:
        """Give the transaction up: nothing of it happens, and deliveries that it would have ended are as before."""
        self._has_ended = True
        for queue, place in self._places.items():
            queue.log.room.give_back(place.reserved)
            place.reserved = 0
            place.tx = 0
            place.refusal = error
            queue.wakeups.dirty()
        for share in self._shares.values():
            for end in share.ends:
                end.undo(end.deliveries)
        self._host.call_soon(lambda: self._on_done(error))

    def _journaled(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._left = len(self._shares)
        for queue, share in self._shares.items():
            done = partial(self._part_done, queue.log.uid)
            place = self._places.get(queue)
            if place is None:  # the queue has ended meanwhile
                done(queue.refusal(), 0, 0)
                continue
            place.settles, place.releases = share.settles, share.releases
            place.on_room = None
            place.on_done = done
            queue.wakeups.dirty()

    def _part_done(self, uid: int, error: CurbstoneError | None, _first: int, _count: int) -> None:
        if not isinstance(error, Unavailable):  # else the journal keeps the part, and the next start writes it
            self._journal.part_done(self._tx, uid)
        self._left -= 1
        if not self._left:
            self._on_done(None)
