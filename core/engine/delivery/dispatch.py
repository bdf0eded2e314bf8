"""Who gets the next message: round robin among the receivers of a group that have room."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from typing import Protocol

from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.engine.write_queue import Outbox
from curbstone.core.message import Delivery

DISPATCH_MAX = 512
"""The most messages that one group of a queue hands out in one turn."""

log = logging.getLogger("curbstone.core")


class Receiver(Protocol):
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


class RoundRobin:
    """The receivers of one group, each once; a receiver of weight n gets n messages when it is its turn.

    The first is the one whose turn it is. Joining and leaving take the same time whatever the weight and however
    many there are.
    """

    __slots__ = ("_given", "_impatient", "_state", "receivers")

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self.receivers: OrderedDict[Receiver, None] = OrderedDict()
        """Who takes part."""
        self._impatient: dict[Receiver, None] = {}
        """The receivers that may give up."""
        self._given = 0
        """How many messages the first has had in this turn."""

    def rooms(self, messages: int) -> dict[Receiver, int]:
        """Return the receivers that would get so many messages, in order, each with how many deliveries it takes now.

        Receivers without room are left out. The search ends as soon as there is room for all the messages, so a message
        costs the same however many receivers there are.
        """
        rooms: dict[Receiver, int] = {}
        given = self._given
        for receiver in self.receivers:
            room = receiver.room
            if room > 0:
                rooms[receiver] = room
                messages -= min(room, max(receiver.weight - given, 1))
                if messages <= 0:
                    break
            given = 0
        return rooms

    def none_ready(self) -> None:
        """Tell those that may give up."""
        for receiver in list(self._impatient):
            receiver.none_ready()

    def join(self, receiver: Receiver) -> None:
        """Let a receiver take part; it comes behind the others."""
        self.receivers[receiver] = None
        if receiver.may_give_up:
            self._impatient[receiver] = None

    def leave(self, receiver: Receiver) -> None:
        """Let a receiver take part no more."""
        if receiver in self.receivers:
            if self._given and receiver is next(iter(self.receivers)):
                self._given = 0
            del self.receivers[receiver]
            self._impatient.pop(receiver, None)

    def deal(self, taken: list[Delivery], rooms: dict[Receiver, int]) -> None:
        """Deal deliveries to the receivers in `rooms`, going on where the last deal ended."""
        first = next(iter(rooms))
        if len(rooms) == 1 and (len(self.receivers) == 1 or len(taken) > first.weight):  # nobody else takes any
            self._give(first, taken)
            return
        hands: dict[Receiver, list[Delivery]] = {}
        turns = deque(rooms)
        last = turns[0]
        given = self._given if last is next(iter(self.receivers)) else 0
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
        while next(iter(self.receivers)) is not last:
            self.receivers.move_to_end(next(iter(self.receivers)))
        if not given:
            self.receivers.move_to_end(last)
        self._given = given
        for receiver, hand in hands.items():
            self._give(receiver, hand)

    def _give(self, receiver: Receiver, hand: list[Delivery]) -> None:
        try:
            receiver.give(hand)
        except Exception:  # a fault of an adapter must not stop the queue for the others
            log.exception("a consumer of %s failed to take its deliveries", self._state.name)
            receiver.fail()


class Dispatcher(dict[str, RoundRobin]):
    """The round robins of one queue, by group; a group without receivers has none."""

    __slots__ = ("_agenda", "_dead_letters", "_index", "_outbox", "_state", "attempts")

    def __init__(
        self, state: QueueState, agenda: Agenda, index: Index, outbox: Outbox, dead_letters: DeadLetters
    ) -> None:
        super().__init__()
        self._state = state
        self._agenda = agenda
        self._index = index
        self._outbox = outbox
        self._dead_letters = dead_letters
        self.attempts = 0
        """How often a receiver has joined so far."""

    def join(self, receiver: Receiver) -> None:
        """Let a receiver take part in the round robin of its group."""
        self.attempts += 1
        name = receiver.group
        round_robin = self.get(name)
        if round_robin is None:
            self._index.group(name, self._state.committed_end)
            round_robin = self[name] = RoundRobin(self._state)
        round_robin.join(receiver)
        self._agenda.wake(name)
        self._agenda.changed()

    def leave(self, receiver: Receiver) -> None:
        """Let a receiver take part no more."""
        round_robin = self.get(receiver.group)
        if round_robin is not None:
            round_robin.leave(receiver)
            if not round_robin.receivers:
                del self[receiver.group]
        self._agenda.changed()

    def room(self, group: str, messages: int) -> int:
        """Return how many deliveries the receivers of a group take now; counting may stop at `messages`."""
        round_robin = self.get(group)
        return sum(round_robin.rooms(messages).values()) if round_robin is not None else 0

    def dispatch(self, name: str) -> None:
        """Hand out what is ready in a group, up to a limit; if there may be more, the next turn goes on."""
        round_robin = self.get(name)
        if round_robin is None:
            return
        if self._state.options.paused:
            round_robin.none_ready()
            return
        group = self._index.group(name)
        most = min(group.rdy, DISPATCH_MAX)
        rooms = round_robin.rooms(most) if most else {}
        if not rooms:
            if not most:
                round_robin.none_ready()
            return
        taken = group.take(min(sum(rooms.values()), most), self._dead_letters.is_dead)
        deliveries = taken.deliveries
        if taken.handed:
            self._outbox.handed(taken.handed)
            self._state.stats.redelivered += sum([delivery.tries > 0 for delivery in deliveries])
        if deliveries:
            self._state.stats.delivered += len(deliveries)
            self._agenda.changed()
            round_robin.deal(deliveries, rooms)
        if taken.dead:
            self._dead_letters.end(group, taken.dead)
        if not group.has_ready:
            round_robin.none_ready()
        elif deliveries:
            self._agenda.wake(name)

    def end(self) -> None:
        """Tell all receivers that there will be nothing more, and forget them."""
        round_robins = list(self.values())
        self.clear()
        for round_robin in round_robins:
            for receiver in list(round_robin.receivers):
                self._state.host.tell(receiver.end)
