"""Who gets the next message: round robin among the receivers of a group that have credit."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from curbstone.core.engine.delivery.acks import Acks
from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.delivery.requeue import Requeue
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery

DISPATCH_MAX = 512
"""The most messages that one group of a queue delivers in one turn."""


class Receiver(Protocol):
    """A consumer, or a pull that waits for messages."""

    weight: int
    """How many messages it gets when it is its turn."""

    @property
    def group(self) -> str:
        """The group that it receives for."""

    @property
    def credit(self) -> int:
        """How many deliveries it takes now."""

    def give(self, deliveries: list[Delivery]) -> None:
        """Take deliveries, at most its `credit`."""

    def end(self, error: CurbstoneError) -> None:
        """The queue ends: there will be no more deliveries, and nothing can be settled any more."""


class RoundRobin:
    """The receivers of one group, each once; a receiver of weight n gets n messages when it is its turn.

    The first is the one whose turn it is. Joining and leaving take the same time whatever the weight and however
    many there are.
    """

    __slots__ = ("_given", "_when_none_ready", "receivers")

    def __init__(self) -> None:
        self.receivers: OrderedDict[Receiver, None] = OrderedDict()
        self._when_none_ready: dict[Receiver, Callable[[], None]] = {}
        """What to call when nothing is ready, for those that may give up then."""
        self._given = 0
        """How many messages the first has had in this turn."""

    def credits(self, messages: int) -> dict[Receiver, int]:
        """Return the receivers that would get so many messages, in order, each with how many deliveries it takes now.

        Receivers without credit are left out. The search ends as soon as all the messages have receivers, so a message
        costs the same however many receivers there are.
        """
        credits: dict[Receiver, int] = {}
        given = self._given
        for receiver in self.receivers:
            credit = receiver.credit
            if credit > 0:
                credits[receiver] = credit
                messages -= min(credit, max(receiver.weight - given, 1))
                if messages <= 0:
                    break
            given = 0
        return credits

    def none_ready(self) -> None:
        """Nothing is ready now, so some receivers may give up."""
        for give_up in list(self._when_none_ready.values()):
            give_up()

    def join(self, receiver: Receiver, when_none_ready: Callable[[], None] | None) -> None:
        """Add a receiver, as the last in the round."""
        self.receivers[receiver] = None
        if when_none_ready is not None:
            self._when_none_ready[receiver] = when_none_ready

    def leave(self, receiver: Receiver) -> None:
        """Let a receiver take part no more."""
        if receiver in self.receivers:
            if self._given and receiver is next(iter(self.receivers)):
                self._given = 0
            del self.receivers[receiver]
            self._when_none_ready.pop(receiver, None)

    def deal(self, taken: list[Delivery], credits: dict[Receiver, int]) -> None:
        """Deal deliveries to the receivers in `credits`, continuing where the last deal ended."""
        first = next(iter(credits))
        if len(credits) == 1 and (len(self.receivers) == 1 or len(taken) > first.weight):  # no other receiver takes any
            first.give(taken)
            return
        hands: dict[Receiver, list[Delivery]] = {}
        turns = deque(credits)
        last = turns[0]
        given = self._given if last is next(iter(self.receivers)) else 0
        start = 0
        while start < len(taken):
            last = turns[0]
            count = min(max(last.weight, 1) - given, credits[last], len(taken) - start)
            hands.setdefault(last, []).extend(taken[start : start + count])
            start += count
            given += count
            credits[last] -= count
            if given >= last.weight or start < len(taken):
                given = 0
                turns.rotate(-1)
                if not credits[last]:
                    turns.pop()
        while next(iter(self.receivers)) is not last:
            self.receivers.move_to_end(next(iter(self.receivers)))
        if not given:
            self.receivers.move_to_end(last)
        self._given = given
        for receiver, hand in hands.items():
            receiver.give(hand)


class Dispatcher:
    """Hands out the messages of one queue, by a round robin for each group."""

    __slots__ = (
        "_dead_letters", "_index", "_state", "_wakeups", "_write_queue", "acks", "attached", "attempts",
        "had_consumer", "parts", "requeue", "round_robins",
    )  # fmt: skip

    def __init__(self, parts: Parts, acks: Acks, requeue: Requeue, dead_letters: DeadLetters) -> None:
        """`acks` and `requeue` are for the receivers, which end the deliveries that they get."""
        self.parts = parts
        self.acks = acks
        self.requeue = requeue
        self._dead_letters = dead_letters
        self._state = parts.state
        self._wakeups = parts.wakeups
        self._index = parts.index
        self._write_queue = parts.write_queue
        self.round_robins: dict[str, RoundRobin] = {}
        """By group; a group without receivers has none."""
        self.attached: dict[Receiver, None] = {}
        """All receivers that have not ended, including paused consumers, which may still settle."""
        self.had_consumer = False
        """Whether a consumer has been attached so far."""
        self.attempts = 0
        """How often a receiver has been attached so far."""

    def attach(self, receiver: Receiver, when_none_ready: Callable[[], None] | None = None) -> None:
        """Let a receiver take part in the round robin of its group.

        One that may give up passes `when_none_ready`, which is called when nothing is ready.
        """
        self.attempts += 1
        self.had_consumer |= when_none_ready is None
        self.attached[receiver] = None
        name = receiver.group
        round_robin = self.round_robins.get(name)
        if round_robin is None:
            self._index.group(name, self._state.committed_end)
            round_robin = self.round_robins[name] = RoundRobin()
        round_robin.join(receiver, when_none_ready)
        self._wakeups.wake(name)
        self._wakeups.changed()

    def pause(self, receiver: Receiver) -> None:
        """Give a receiver nothing more."""
        round_robin = self.round_robins.get(receiver.group)
        if round_robin is not None:
            round_robin.leave(receiver)
            if not round_robin.receivers:
                del self.round_robins[receiver.group]
        self._wakeups.changed()

    def detach(self, receiver: Receiver) -> None:
        self.attached.pop(receiver, None)
        self.pause(receiver)

    def credit(self, group: str, messages: int) -> int:
        """Return how many deliveries the receivers of a group take now; counting may stop at `messages`."""
        round_robin = self.round_robins.get(group)
        credit = sum(round_robin.credits(messages).values()) if round_robin is not None else 0
        options = self._state.options
        if credit and (options.in_flight or options.rate):
            credit = self.parts.limits.allowed(group, len(self._index.groups[group].in_flight), credit)
        return credit

    def dispatch(self, name: str) -> None:
        """Hand out what is ready in a group, up to a limit; if there may be more, the next turn continues."""
        round_robin = self.round_robins.get(name)
        if round_robin is None:
            return
        options = self._state.options
        if options.paused:
            round_robin.none_ready()
            return
        group = self._index.groups[name]  # it is kept as long as it has a receiver
        most = min(group.rdy, DISPATCH_MAX)
        if most and (options.in_flight or options.rate):
            most = self.parts.limits.allowed(name, len(group.in_flight), most)
            if not most:
                self.parts.limits.wake_when_allowed(name)
        credits = round_robin.credits(most) if most else {}
        if not credits:
            if not most:
                round_robin.none_ready()
            return
        most = min(sum(credits.values()), most)
        keys = group.keys
        freed = keys.freed if keys is not None else 0
        taken = group.take(most, self._dead_letters.is_dead, options.oldest_every)
        deliveries = taken.deliveries
        if taken.handed:
            self._write_queue.record_redeliveries(taken.handed)
            self._state.stats.redelivered += sum([delivery.tries > 0 for delivery in deliveries])
        if deliveries:
            self._state.stats.delivered += len(deliveries)
            if options.rate:
                self.parts.limits.took(name, len(deliveries))
            self._wakeups.changed()
            round_robin.deal(deliveries, credits)
        if taken.dead:
            self._dead_letters.end(group, taken.dead)
        if not group.has_ready:
            round_robin.none_ready()
        elif deliveries or taken.steps <= 0 or (keys is not None and keys.freed > freed and not taken.is_reading):
            self._wakeups.wake(name)  # perhaps what was found was settled meanwhile, and there is room for others now

    def end(self, error: CurbstoneError) -> None:
        """The queue ends: so do all receivers."""
        receivers, self.attached = list(self.attached), {}
        self.round_robins.clear()
        for receiver in receivers:
            self._state.host.notify(receiver.end, error)
