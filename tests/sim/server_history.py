"""What clients of all protocols were promised and what came of it, in one model.

A message has a token, which its body begins with. A copy of it is what one group of one queue is entitled to:
(queue, group, token). A copy is `confirmed` once its publish was, over whatever protocol; `doomed` from the moment
something was asked that removes it, and `gone` once that was confirmed. What may never be seen, because it was
refused or its transaction was not committed, is `hidden`. See `judge` and `receive` for what is demanded.

A pop removes what nobody can name beforehand. Its copy is `gone` once its client has the answer; a pop that was
refused, or answered with nothing, has removed none. One whose client left, or whose server crashed, before the
answer came may have taken one copy, and no more, with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tests.sim.history import Violation

DEAD = "dead"


class Copy(NamedTuple):
    """One group's entitlement to a message in one queue."""

    queue: str
    group: str
    token: int


class Holder(Protocol):
    """Whoever gets deliveries: a subscription, a socket, a lease."""

    name: str
    queue: str
    group: str
    last: dict[str, int]
    """By producer: the place of the last first delivery."""

    @property
    def holds(self) -> bool:
        """Whether what it was given and did not settle is still its own."""


@dataclass(slots=True)
class Sent:
    """A message as it was sent."""

    token: int
    body: bytes
    fields: dict[str, str]
    """User headers by the names they have in JSON."""
    queue: str
    groups: tuple[str, ...]
    producer: str = ""
    """Whose order it has a place in; empty for none."""
    place: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0

    @property
    def copies(self) -> list[Copy]:
        return [Copy(self.queue, group, self.token) for group in self.groups or ("",)]


@dataclass
class Unit:
    """A transaction: what it publishes and what it acks."""

    publishes: list[Copy] = field(default_factory=list)
    acks: list[Copy] = field(default_factory=list)
    confirmed: bool = False


class Received(NamedTuple):
    """A delivery as a client sees it; `fields` is None where the protocol shows none."""

    body: bytes
    fields: dict[str, str] | None
    tries: int


class History:
    """All messages of a run."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.confirmed: set[Copy] = set()
        self.hidden: set[Copy] = set()
        self.doomed: set[Copy] = set()
        self.doomed_alone: set[Copy] = set()
        """Doomed by something else than a transaction."""
        self.gone: set[Copy] = set()
        self.popped: set[Copy] = set()
        """Copies whose settling for a pop was begun, and did not fail."""
        self.put_back: set[Copy] = set()
        """Copies that somebody was to get who was gone, or refused: others may have had later ones meanwhile."""
        self.orphans: Counter[tuple[str, str]] = Counter()
        """Pops, by queue and group, whose client never learned what became of them."""
        self.units: list[Unit] = []
        self.live: dict[Copy, Holder] = {}
        self.dying: set[str] = set()
        """Queues whose messages may become dead letters at any time."""
        self.deliveries = 0
        self._next = 1

    def new(self, queue: str, size: int, fields: dict[str, str], *, plain: bool = False) -> Sent:
        """Return a new message with a token; `plain`: of printable bytes."""
        token = self._next
        self._next += 1
        filler = b"abcdefgh"[token % 8 : token % 8 + 1] if plain or token % 4 else b"\x00\n\xff\t"
        head = b"%d:" % token
        body = head + (filler * size)[: max(size - len(head), 0)]
        sent = self.sent[token] = Sent(token, body, fields, queue, ())
        return sent

    def confirm(self, copies: Iterable[Copy]) -> None:
        self.confirmed.update(copies)

    def doom(self, copies: Iterable[Copy], *, alone: bool = True) -> None:
        copies = list(copies)
        self.doomed.update(copies)
        if alone:
            self.doomed_alone.update(copies)

    def receive(self, holder: Holder, received: Received) -> Copy:
        """A client was given a message; return what of. Raise Violation where it should not have been."""
        self.deliveries += 1
        head = received.body.partition(b":")[0]
        sent = self.sent.get(int(head)) if head.isdigit() else None
        if sent is None:
            raise Violation(f"{holder.name} got a message nobody sent: {received.body[:40]!r}")
        copy = Copy(holder.queue, holder.group, sent.token)
        if received.body != sent.body:
            raise Violation(f"{copy} came out as it was not sent, to {holder.name}")
        self._check_fields(copy, sent, received)
        if copy in self.hidden:
            raise Violation(f"{copy} came out to {holder.name} though it was refused or never committed")
        if not holder.holds:
            return copy  # it was on its way when the server ended the connection, and went back
        if copy in self.gone:
            raise Violation(f"{copy} returned after its settling was confirmed, to {holder.name}")
        other = self.live.get(copy)
        if other is not None and other is not holder and other.holds:
            raise Violation(f"{copy} is with {other.name} and was given to {holder.name} too")
        is_late = sent.delay_ms or copy in self.put_back
        if not received.tries and sent.producer and not is_late and holder.queue == sent.queue:
            if holder.last.get(sent.producer, 0) > sent.place:
                raise Violation(f"{copy} of {sent.producer} came to {holder.name} behind a later one")
            holder.last[sent.producer] = sent.place
        self.live[copy] = holder
        return copy

    def _check_fields(self, copy: Copy, sent: Sent, received: Received) -> None:
        if copy.queue == DEAD and sent.queue in self.dying:
            shown = {k: v for k, v in (received.fields or {}).items() if not k.startswith("x-dead-")}
        elif copy.queue == sent.queue and copy.group in (sent.groups or ("",)):
            shown = received.fields or {}
        else:
            raise Violation(f"{copy} was never sent there")
        if received.fields is not None and shown != sent.fields:
            raise Violation(f"{copy} was sent with {sent.fields} and came with {shown}")

    def crashed(self) -> None:
        self.live.clear()

    # --- transactions

    def refused(self, unit: Unit) -> None:
        """Nothing of a transaction was done."""
        self.hidden.update(unit.publishes)
        unit.publishes, unit.acks = [], []
        self.doomed = self.doomed_alone.union(*[each.acks for each in self.units])

    def _others_doom(self, unit: Unit) -> set[Copy]:
        elsewhere = {copy for other in self.units if other is not unit for copy in other.acks}
        return {copy for copy in unit.acks if copy in self.doomed_alone or copy in elsewhere or copy in self.popped}

    # --- the end

    def judge(self, came_out: list[Copy]) -> None:
        """Compare what a full drain gave with what was promised."""
        seen = set(came_out)
        if len(seen) != len(came_out):
            raise Violation(f"twice in one drain: {sorted(c for c in seen if came_out.count(c) > 1)}")
        back = sorted(self.gone & seen)
        if back:
            raise Violation(f"settled for good, and back: {back}")
        lost = self._without_orphans(sorted(copy for copy in self.confirmed if not self._accounted(copy, seen)))
        if lost:
            raise Violation(f"lost: {lost}")
        moved = [copy for copy in seen if copy.queue in self.dying and copy._replace(queue=DEAD) in seen]
        if moved:
            raise Violation(f"a dead letter, and still where it was: {moved}")
        for unit in self.units:
            self._judge_unit(unit, seen)

    def _without_orphans(self, lost: list[Copy]) -> list[Copy]:
        """Return what is lost though no pop can have taken it away with its client."""
        left = Counter(self.orphans)
        unexplained = []
        for copy in lost:
            left[copy.queue, copy.group] -= 1
            if copy not in self.popped or left[copy.queue, copy.group] < 0:
                unexplained.append(copy)
        return unexplained

    def _accounted(self, copy: Copy, seen: set[Copy]) -> bool:
        if copy in seen or copy in self.doomed:
            return True
        dead = copy._replace(queue=DEAD)
        return copy.queue in self.dying and (dead in seen or dead in self.doomed)

    def _judge_unit(self, unit: Unit, seen: set[Copy]) -> None:
        there = [self._accounted(copy, seen) or copy in self.popped for copy in unit.publishes]
        if any(there) and not all(there):
            raise Violation(f"half of a transaction: {dict(zip(unit.publishes, there, strict=True))}")
        if unit.publishes and unit.acks and not unit.confirmed:
            alone = [copy for copy in unit.acks if copy not in self._others_doom(unit) and copy.queue not in self.dying]
            acked = [copy not in seen for copy in alone]
            if acked and any(acked) != all(there):
                raise Violation(f"a transaction's publishes {all(there)}, its acks {acked}: {unit}")

    def judge_order(self, queue: str, by_seq: list[int]) -> None:
        """Demand of all that is left in a queue, in the order of its seqs, that each producer's is in its order."""
        last: dict[str, int] = {}
        for token in by_seq:
            sent = self.sent[token]
            if sent.producer and sent.queue == queue:
                if last.get(sent.producer, 0) > sent.place:
                    raise Violation(f"{queue}: {token} of {sent.producer} is stored behind a later one")
                last[sent.producer] = sent.place
