"""Who gets the next message: round robin among the takers of a group that have room."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from typing import Protocol

from curbstone.core.engine.delivery.dead_letters import Deaths
from curbstone.core.engine.index.index import Pending
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.engine.write_queue import Outbox
from curbstone.core.message import Delivery

DISPATCH_MAX = 512
"""The most messages that one group of a queue hands out in one turn."""

log = logging.getLogger("curbstone.core")


class Taker(Protocol):
    """Whoever takes part in the round robin of a group."""

    weight: int
    may_give_up: bool
    """Whether it wants to hear that nothing is ready."""

    @property
    def group(self) -> str:
        """The group in which it takes part."""

    @property
    def room(self) -> int:
        """How many deliveries it takes now."""

    def give(self, deliveries: list[Delivery]) -> None:
        """Take deliveries, at most `room` of them."""

    def none_ready(self) -> None:
        """Nothing is ready now, so it may give up. Called only if `may_give_up` is set."""

    def fail(self) -> None:
        """`give` raised an exception."""

    def end(self) -> None:
        """The queue ends: there will be no more deliveries."""


class Ring:
    """The takers of one group, each once; a taker of weight n gets n messages when it is its turn.

    The first is the one whose turn it is. Joining and leaving take the same time whatever the weight and however
    many there are.
    """

    __slots__ = ("_given", "_impatient", "_state", "takers")

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self.takers: OrderedDict[Taker, None] = OrderedDict()
        """Who takes part."""
        self._impatient: dict[Taker, None] = {}
        """The takers that may give up."""
        self._given = 0
        """How many messages the first has had in this turn."""

    def rooms(self, messages: int) -> dict[Taker, int]:
        """Return the takers that would get so many messages, in order, each with how many deliveries it takes now.

        Takers without room are left out. The search ends as soon as there is room for all the messages, so a message
        costs the same however many takers there are.
        """
        rooms: dict[Taker, int] = {}
        given = self._given
        for taker in self.takers:
            room = taker.room
            if room > 0:
                rooms[taker] = room
                messages -= min(room, max(taker.weight - given, 1))
                if messages <= 0:
                    break
            given = 0
        return rooms

    def none_ready(self) -> None:
        """Tell those that may give up."""
        for taker in list(self._impatient):
            taker.none_ready()

    def join(self, taker: Taker) -> None:
        """Let a taker take part; it comes behind the others."""
        self.takers[taker] = None
        if taker.may_give_up:
            self._impatient[taker] = None

    def leave(self, taker: Taker) -> None:
        """Let a taker take part no more."""
        if taker in self.takers:
            if self._given and taker is next(iter(self.takers)):
                self._given = 0
            del self.takers[taker]
            self._impatient.pop(taker, None)

    def deal(self, taken: list[Delivery], rooms: dict[Taker, int]) -> None:
        """Deal deliveries to the takers in `rooms`, going on where the last deal ended."""
        first = next(iter(rooms))
        if len(rooms) == 1 and (len(self.takers) == 1 or len(taken) > first.weight):  # nobody else takes any
            self._give(first, taken)
            return
        hands: dict[Taker, list[Delivery]] = {}
        turns = deque(rooms)
        last = turns[0]
        given = self._given if last is next(iter(self.takers)) else 0
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
        while next(iter(self.takers)) is not last:
            self.takers.move_to_end(next(iter(self.takers)))
        if not given:
            self.takers.move_to_end(last)
        self._given = given
        for taker, hand in hands.items():
            self._give(taker, hand)

    def _give(self, taker: Taker, hand: list[Delivery]) -> None:
        try:
            taker.give(hand)
        except Exception:  # a fault of an adapter must not stop the queue for the others
            log.exception("a consumer of %s failed to take its deliveries", self._state.name)
            taker.fail()


class Rings(dict[str, Ring]):
    """The rings of one queue, by group; a group without takers has none."""

    __slots__ = ("_agenda", "_deaths", "_outbox", "_pending", "_state", "attempts")

    def __init__(self, state: QueueState, agenda: Agenda, pending: Pending, outbox: Outbox, deaths: Deaths) -> None:
        super().__init__()
        self._state = state
        self._agenda = agenda
        self._pending = pending
        self._outbox = outbox
        self._deaths = deaths
        self.attempts = 0
        """How often a taker has joined so far."""

    def join(self, taker: Taker) -> None:
        """Let a taker take part in the ring of its group."""
        self.attempts += 1
        name = taker.group
        ring = self.get(name)
        if ring is None:
            self._pending.group(name, self._state.committed_end)
            ring = self[name] = Ring(self._state)
        ring.join(taker)
        self._agenda.wake(name)
        self._agenda.changed()

    def leave(self, taker: Taker) -> None:
        """Let a taker take part no more."""
        ring = self.get(taker.group)
        if ring is not None:
            ring.leave(taker)
            if not ring.takers:
                del self[taker.group]
        self._agenda.changed()

    def room(self, group: str, messages: int) -> int:
        """Return how many deliveries the takers of a group take now; counting may stop when it reaches `messages`."""
        ring = self.get(group)
        return sum(ring.rooms(messages).values()) if ring is not None else 0

    def dispatch(self, name: str) -> None:
        """Hand out what is ready in a group, up to a limit; if there may be more, the next turn goes on."""
        ring = self.get(name)
        if ring is None:
            return
        if self._state.options.paused:
            ring.none_ready()
            return
        group = self._pending.group(name)
        most = min(group.rdy, DISPATCH_MAX)
        rooms = ring.rooms(most) if most else {}
        if not rooms:
            if not most:
                ring.none_ready()
            return
        taken = group.take(min(sum(rooms.values()), most), self._deaths.is_dead)
        deliveries = taken.deliveries
        if taken.handed:
            self._outbox.handed(taken.handed)
            self._state.stats.redelivered += sum([delivery.tries > 0 for delivery in deliveries])
        if deliveries:
            self._state.stats.delivered += len(deliveries)
            self._agenda.changed()
            ring.deal(deliveries, rooms)
        if taken.dead:
            self._deaths.end(group, taken.dead)
        if not group.has_ready:
            ring.none_ready()
        elif deliveries:
            self._agenda.wake(name)

    def end(self) -> None:
        """Tell all takers that there will be nothing more, and forget them."""
        rings = list(self.values())
        self.clear()
        for ring in rings:
            for taker in list(ring.takers):
                self._state.host.tell(taker.end)
