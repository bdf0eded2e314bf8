"""What was promised and what came of it: the judge of a simulated run.

Each message carries a token in its body; with each group that is entitled to it, it is counted
apart. A token is `confirmed` once its publish was, `doomed` from the moment something was asked
that removes it (ack, pop, purge; an expiry, with the publish) and `gone` once that was confirmed. After
everything was drained:

- confirmed and not doomed: came out, once
- gone: never came out after that
- refused for want of room, or kept out by a filter: never came out
- anything that came out was sent, and its body is what was sent
- what came out first time and in order was published in that order
- of a transaction that was not confirmed: all or nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.message import Message
from curbstone.core.orders import level_in, orders_of, without_names
from curbstone.core.values import UNNAMED

GROUPS = (UNNAMED, "g", "h")
GROUP_STEP = 1_000_000_000


@dataclass
class Unit:
    """A transaction: the tokens it publishes and those it acks."""

    publishes: list[int] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    confirmed: bool = False
    refused: bool = False


class Violation(AssertionError):
    """A promise that was not kept."""


class History:
    """All that happened to all tokens of a run."""

    def __init__(self) -> None:
        self._next = 1
        self.keys = 0
        """How many ordering keys messages have; 0 for none."""
        self.names: dict[int, bytes] = {}
        """The line with the unique name, by token."""
        self.handed: set[int] = set()
        """What was handed to somebody at any time."""
        self.shares_keys = False
        """Whether options let several messages of a key be in flight, or choose between keys."""
        self.priorities = 0
        """How many priorities they have beside none; 0 for none."""
        self.bodies: dict[int, bytes] = {}
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.doomed: set[int] = set()
        self.gone: set[int] = set()
        self.doomed_alone: set[int] = set()
        """Doomed by something else than a transaction."""
        self.undone: set[int] = set()
        """What may have returned after it was doomed."""
        self.undone_early: set[int] = set()
        """What may have returned before it was confirmed that it was gone: a transaction tells that when it has been
        written to all of its queues."""
        self.barred: set[int] = set()
        """What no filter lets into a queue."""
        self.units: list[Unit] = []
        self.violations: list[Violation] = []
        self.live: dict[int, str] = {}
        """Tokens that are delivered and unsettled now, and to whom."""

    def message(self, size: int, delay_ms: int = 0, groups: tuple[str, ...] = (), ttl_ms: int = 0) -> Message:
        """Return a message with a new token."""
        token = self._next
        self._next += 1
        body = (b"%d:" % token).ljust(size, b"abcdefgh"[token % 8 : token % 8 + 1])
        self.bodies[token] = body
        block = self.headers(token)
        return Message(body, block, orders_of(delay_ms=delay_ms, ttl_ms=ttl_ms, groups=groups, level=level_in(block)))

    def headers(self, number: int) -> bytes:
        """Return the headers of the message with a token."""
        key = b"x-key:%d\n" % (number % self.keys) if self.keys and number % 4 else b""
        priority = b"priority:%d\n" % (number * 7 % self.priorities) if self.priorities and number % 5 else b""
        return (b"n:%d\n" % number if number % 3 else b"") + key + priority + self.names.get(number, b"")

    @staticmethod
    def token(message: Message, group: str = UNNAMED) -> int:
        return int(message.body.partition(b":")[0]) + GROUP_STEP * GROUPS.index(group)

    @staticmethod
    def is_of(token: int, group: str) -> bool:
        """Return whether a token counts for a group."""
        return token // GROUP_STEP == GROUPS.index(group)

    def tokens(self, message: Message) -> list[int]:
        """Return the tokens of a message, one for each group that is entitled to it."""
        return [self.token(message, group) for group in message.groups or (UNNAMED,)]

    def released(self, consumer: Consumer) -> None:
        """The deliveries of a consumer are not in flight any more."""
        for delivery in consumer.unsettled.values():
            self.live.pop(self.token(delivery.message, consumer.group), None)

    def delivered(self, message: Message, to: str, group: str = UNNAMED) -> None:
        """A message was handed to somebody. What is wrong with that is kept for `check`: the engine catches errors."""
        try:
            self._delivered(message, to, group)
        except Violation as violation:
            self.violations.append(violation)

    def see_barred(self, tokens: Iterable[int]) -> None:
        """Note what was handed out although a filter lets it into no queue."""
        self.violations += [Violation(f"token {each} passes no filter") for each in tokens if each in self.barred]

    def check(self) -> None:
        """Raise the first violation there was."""
        if self.violations:
            raise self.violations[0]

    def _delivered(self, message: Message, to: str, group: str) -> None:
        token = self.token(message, group)
        number = token % GROUP_STEP
        if self.bodies.get(number) != message.body:
            raise Violation(f"token {token} came out as it was not sent")
        block, sent = message.headers.partition(b"x-dead-")[0], self.headers(number)
        if block != sent and block != without_names(sent):  # a dead letter has no name
            raise Violation(f"token {token} came out with the headers {message.headers!r}")
        if token in self.gone and token not in self.undone_early:
            raise Violation(f"token {token} returned after its settling was confirmed, to {to}")
        if token in self.refused:
            raise Violation(f"token {token} came out though it was refused")
        if token in self.live:
            raise Violation(f"token {token} is with {self.live[token]} and was given to {to} too")
        self.live[token] = to
        self.handed.add(token)

    def crashed(self) -> None:
        self.live.clear()

    def judge(self, came_out: list[int]) -> None:
        """Compare what a full drain gave with what was promised."""
        seen = set(came_out)
        self.see_barred(came_out)
        self.check()
        if len(seen) != len(came_out):
            raise Violation(f"twice in one drain: {sorted(t for t in seen if came_out.count(t) > 1)}")
        lost = sorted(self.confirmed - self.doomed - seen)
        if lost:
            raise Violation(f"lost: {lost}")
        back = sorted((self.gone & seen) - self.undone_early)
        if back:
            raise Violation(f"settled for good, and back: {back}")
        phantoms = sorted(t for t in seen if t % GROUP_STEP not in self.bodies or t in self.refused)
        if phantoms:
            raise Violation(f"never accepted, and there: {phantoms}")
        for unit in self.units:
            there = [token in seen or token in self.doomed for token in unit.publishes]
            if any(there) and not all(there):
                raise Violation(f"half of a transaction: {dict(zip(unit.publishes, there, strict=True))}")
            if unit.publishes and unit.acks and not unit.confirmed:
                acked = [token not in seen for token in unit.acks if token not in self.others_doom(unit)]
                if acked and any(acked) != all(there):
                    raise Violation(f"a transaction's publishes {all(there)}, its acks {acked}: {unit}")

    def spare_again(self) -> None:
        """A transaction was refused: what only it would have acked is not doomed."""
        self.doomed = self.doomed_alone.union(*[unit.acks for unit in self.units])

    def others_doom(self, unit: Unit) -> set[int]:
        """Return the tokens of a transaction's acks that may be gone for another reason."""
        elsewhere = {token for other in self.units if other is not unit for token in other.acks}
        elsewhere |= self.doomed_alone | self.undone
        return {token for token in unit.acks if token in elsewhere}
