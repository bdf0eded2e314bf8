"""Distributes the messages of a group: round robin among its receivers that have credit."""

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
    """How many messages it gets in each round."""

    @property
    def group(self) -> str:
        """The group that it receives from."""

    @property
    def credit(self) -> int:
        """How many deliveries it takes now."""

    def give(self, deliveries: list[Delivery]) -> None:
        """Take deliveries, at most its `credit`."""

    def end(self, error: CurbstoneError) -> None:
        """End the receiver with its queue: nothing is delivered or settled any more."""


class RoundRobin:
    """The receivers of one group; a receiver of weight n gets n messages in each round.

    The first receiver is the next one. Joining and leaving take constant time.
    """

    __slots__ = ("_given", "_when_none_ready", "receivers")

    def __init__(self) -> None:
        self.receivers: OrderedDict[Receiver, None] = OrderedDict()
        self._when_none_ready: dict[Receiver, Callable[[], None]] = {}
        """Callbacks of receivers that may give up when nothing is ready."""
        self._given = 0
        """How many messages the first receiver has had in this round."""

    def credits(self, messages: int) -> dict[Receiver, int]:
        """Return the receivers that would get so many messages, in order, with their credits.

        Receivers without credit are left out. The search ends as soon as all messages have receivers, so the cost of a
        message does not depend on the number of receivers.
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
        """Let receivers give up that do so when nothing is ready."""
        for give_up in list(self._when_none_ready.values()):
            give_up()

    def join(self, receiver: Receiver, when_none_ready: Callable[[], None] | None) -> None:
        """Add a receiver behind all others."""
        self.receivers[receiver] = None
        if when_none_ready is not None:
            self._when_none_ready[receiver] = when_none_ready

    def leave(self, receiver: Receiver) -> None:
        """Remove a receiver, if it is there."""
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
        """How many receivers have been attached so far."""

    def attach(self, receiver: Receiver, when_none_ready: Callable[[], None] | None = None) -> None:
        """Add a receiver to the round robin of its group.

        `when_none_ready` is called when nothing is ready; consumers, which just wait then, pass None.
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
        """Deliver nothing more to a receiver."""
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
        """Return the credit of all receivers of a group together; counting may stop at `messages`."""
        round_robin = self.round_robins.get(group)
        credit = sum(round_robin.credits(messages).values()) if round_robin is not None else 0
        options = self._state.options
        if credit and (options.in_flight or options.rate):
            credit = self.parts.limits.allowed(group, len(self._index.groups[group].in_flight), credit)
        return credit

    def dispatch(self, name: str) -> None:
        """Deliver what is ready in a group, up to a limit; if there may be more, the next turn continues."""
        round_robin = self.round_robins.get(name)
        if round_robin is None:
            return
        options = self._state.options
        if options.paused:
            round_robin.none_ready()
            return
        group = self._index.groups[name]  # it exists as long as it has a receiver
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
            self._wakeups.wake(name)  # what was found may be settled by now, and leave room for others

    def end(self, error: CurbstoneError) -> None:
        """End all receivers with the queue."""
        receivers, self.attached = list(self.attached), {}
        self.round_robins.clear()
        for receiver in receivers:
            self._state.host.notify(receiver.end, error)
