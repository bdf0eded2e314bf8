"""Who gets the next message: round robin among the takers of a group that have room."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from curbstone.core.consumer import Consumer, Taker
from curbstone.core.delivery.waiters import Waiter
from curbstone.core.message import Delivery

if TYPE_CHECKING:
    from curbstone.core.pending.group import Group
    from curbstone.core.queue import Queue

DISPATCH_MAX = 512

log = logging.getLogger("curbstone.core")


class Ring:
    """The takers of one group; a taker of weight n stands in it n times."""

    def __init__(self, queue: Queue, group: Group) -> None:
        self._queue = queue
        self._group = group
        self._takers: list[Taker] = []
        self._next = 0

    @property
    def consumers(self) -> list[Consumer]:
        """The consumers in it, each once."""
        return list(dict.fromkeys(taker for taker in self._takers if isinstance(taker, Consumer)))

    @property
    def room(self) -> int:
        """How many deliveries the takers take now."""
        return sum([max(taker.room, 0) for taker in dict.fromkeys(self._takers)])

    def join(self, taker: Taker) -> None:
        """Let a taker take part."""
        self._takers += [taker] * max(taker.weight, 1)

    def leave(self, taker: Taker) -> None:
        """Let it take part no more."""
        self._takers = [other for other in self._takers if other is not taker]

    def dispatch(self) -> bool:
        """Hand out what is ready, a bounded amount; return whether there may be more to do at once."""
        open_takers = [taker for taker in self._takers if taker.room > 0]
        if not open_takers:
            return False
        first = open_takers[0]
        alone = len(open_takers) == 1 or all(taker is first for taker in open_takers)
        room = first.room if alone else sum(taker.room for taker in dict.fromkeys(open_takers))
        limit = min(room, DISPATCH_MAX)
        taken = self._group.take(limit)
        if taken:
            self._queue.stats.delivered += len(taken)
            self._queue.changed()
            if alone:
                self._give(first, taken)
            else:
                self._deal(taken)
        elif not self._group.rdy:
            self._answer_waiters()
            return False
        return bool(taken)

    def _deal(self, taken: list[Delivery]) -> None:
        """Deal deliveries one by one, on from where the last deal ended."""
        hands: dict[Taker, list[Delivery]] = {}
        rooms = {taker: taker.room for taker in self._takers}
        takers = self._takers
        index = self._next
        for delivery in taken:
            while True:
                taker = takers[index % len(takers)]
                index += 1
                if rooms[taker] > 0:
                    break
            rooms[taker] -= 1
            hands.setdefault(taker, []).append(delivery)
        self._next = index % len(takers)
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
        for taker in self._takers:
            if isinstance(taker, Waiter) and not taker.waits:
                taker.give_nothing()

    def end(self) -> None:
        """Answer all waiters: there will be nothing."""
        for taker in list(self._takers):
            if isinstance(taker, Waiter):
                taker.give_nothing()
