"""Who gets the next message: round robin among the takers of a group that have room."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from curbstone.core.breakdown import tell
from curbstone.core.consumer import Consumer, Taker
from curbstone.core.delivery.waiters import Waiter
from curbstone.core.message import Delivery

if TYPE_CHECKING:
    from curbstone.core.pending.group import Group
    from curbstone.core.queue import Queue

DISPATCH_MAX = 512

log = logging.getLogger("curbstone.core")


class Ring:
    """The takers of one group, each once; a taker of weight n gets n messages when it is its turn.

    The first is the one whose turn it is. Joining and leaving take the same time whatever the weight and however
    many there are.
    """

    def __init__(self, queue: Queue, group: Group) -> None:
        self._queue = queue
        self._group = group
        self._takers: OrderedDict[Taker, None] = OrderedDict()
        self._given = 0
        """How many messages the first has had in this turn."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody takes part."""
        return not self._takers

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers in it."""
        return [taker for taker in self._takers if isinstance(taker, Consumer)]

    @property
    def room(self) -> int:
        """How many deliveries the takers take now."""
        return sum([max(taker.room, 0) for taker in self._takers])

    def join(self, taker: Taker) -> None:
        """Let a taker take part; it comes behind the others."""
        self._takers[taker] = None

    def leave(self, taker: Taker) -> None:
        """Let it take part no more."""
        if taker in self._takers:
            if self._given and taker is next(iter(self._takers)):
                self._given = 0
            del self._takers[taker]

    def dispatch(self) -> bool:
        """Hand out what is ready, a bounded amount; return whether there may be more to do at once."""
        rooms = {taker: room for taker in self._takers if (room := taker.room) > 0}
        if not rooms:
            return False
        is_paused = self._queue.options.paused
        taken = [] if is_paused else self._group.take(min(sum(rooms.values()), DISPATCH_MAX))
        if taken:
            self._queue.stats.delivered += len(taken)
            self._queue.changed()
            if len(rooms) == 1:
                self._give(next(iter(rooms)), taken)
            else:
                self._deal(taken, rooms)
        if self._group.rdy and not is_paused:
            return bool(taken)
        self._answer_waiters()
        return False

    def _deal(self, taken: list[Delivery], rooms: dict[Taker, int]) -> None:
        """Deal deliveries to those with room, on from where the last deal ended."""
        hands: dict[Taker, list[Delivery]] = {}
        turns = deque(rooms)
        last = turns[0]
        given = self._given if last is next(iter(self._takers)) else 0
        start = 0
        while start < len(taken):
            last = turns[0]
            count = min(max(last.weight, 1) - given, rooms[last], len(taken) - start)
            hands.setdefault(last, []).extend(taken[start : start + count])
            start += count
            given += count
            rooms[last] -= count
            if given >= last.weight or start < len(taken):
                given = 0
                turns.rotate(-1)
                if not rooms[last]:
                    turns.pop()
        while next(iter(self._takers)) is not last:
            self._takers.move_to_end(next(iter(self._takers)))
        if not given:
            self._takers.move_to_end(last)
        self._given = given
        for taker, hand in hands.items():
            self._give(taker, hand)

    def _give(self, taker: Taker, hand: list[Delivery]) -> None:
        try:
            taker.give(hand)
        except Exception:  # a fault of an adapter must not stop the queue for the others
            log.exception("a consumer of %s failed to take its deliveries", self._queue.name)
            if isinstance(taker, Consumer):
                taker.close()

    def _answer_waiters(self) -> None:
        for taker in list(self._takers):
            if isinstance(taker, Waiter) and not taker.waits:
                taker.give_nothing()

    def end(self) -> None:
        """Answer all waiters: there will be nothing."""
        for taker in list(self._takers):
            if isinstance(taker, Waiter):
                taker.give_nothing()


class Rings(dict[str, Ring]):
    """The rings of one queue, by group."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def join(self, name: str, taker: Taker) -> None:
        """Let a taker take part in the ring of a group."""
        ring = self.get(name)
        if ring is None:
            ring = self[name] = Ring(self._queue, self._queue.pending.group(name, self._queue.reading.next))
        ring.join(taker)

    def leave(self, name: str, taker: Taker) -> None:
        """Let it take part no more."""
        ring = self.get(name)
        if ring is not None:
            ring.leave(taker)

    def has_takers(self, name: str) -> bool:
        """Tell whether anybody takes part in a group."""
        ring = self.get(name)
        return ring is not None and not ring.is_empty

    def room(self, name: str) -> int:
        """Return how many deliveries the takers of a group take now."""
        ring = self.get(name)
        return ring.room if ring is not None else 0

    def forget(self, name: str) -> None:
        """Forget a group in which nobody takes part."""
        self.pop(name, None)

    def consumers(self, name: str | None) -> list[Consumer]:
        """Return the consumers of a group, or of all."""
        rings = self.values() if name is None else [r for n, r in self.items() if n == name]
        return [consumer for ring in rings for consumer in ring.consumers]

    def end(self) -> None:
        """Answer all waiters, and forget all."""
        for ring in list(self.values()):
            tell(self._queue, ring.end)
        self.clear()
