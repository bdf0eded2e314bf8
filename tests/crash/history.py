"""What went in must come out: the record of a run with crashes, and its judge.

Every attempt to send has a value of its own, so a line that is sent again after a crash is a new value. Clients of
all protocols, on many threads, record what they did and saw; `judge` replays the record after a full drain, in
which every delivery was settled sooner or later. It finds

- lost: confirmed, and never settled by anybody
- returned: delivered again after its ack was confirmed
- refused: delivered though the server said that it changed nothing
- doubled: one send that is two messages
- shared: with two consumers at once in one boot of the server
- phantom: never sent, or not to this queue
- corrupt: not the bytes that were sent
- unordered: the log's order is not the producer's, or a consumer saw first deliveries out of the log's order
- torn: a unit (a batch, a transaction) of which only a part is there

A send without an answer may be there or not, and an ack without a confirmation may have counted or not: both are
legal and counted. `boot` is the number of the server's boot, one more after each start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

SHOWN_MAX = 10


class Sent(NamedTuple):
    """A message is about to be sent."""

    value: str
    queue: str
    body: bytes
    producer: str
    """The connection: what one producer sends has an order."""
    unit: str
    """Equal for sends of which all or none must be there; empty for none."""


class Answered(NamedTuple):
    """The server confirmed a send, or refused it for good."""

    value: str
    accepted: bool


class Delivered(NamedTuple):
    """A consumer got a message."""

    value: str
    queue: str
    message_id: str
    body: bytes
    consumer: str
    """The connection: what one consumer gets for the first time has an order."""
    boot: int
    tries: int


class Requeued(NamedTuple):
    """A delivery is about to end without being settled, in the boot it was made."""

    message_id: str
    boot: int


class Settling(NamedTuple):
    """An ack is about to be sent."""

    message_id: str
    unit: str = ""
    """The transaction it is in, with sends that must be there exactly if the ack counts; empty for none."""


class Settled(NamedTuple):
    """An ack was confirmed."""

    message_id: str
    boot: int


Event = Sent | Answered | Delivered | Requeued | Settling | Settled


class History(list[Event]):
    """The record, in the order in which things were seen; any thread may append."""

    def judge(self) -> Verdict:
        """Return what is to be said of the run, after everything was drained and settled."""
        replay = _Replay()
        for event in self:
            replay.take(event)
        return replay.end()


@dataclass
class Verdict:
    """The outcome of a run: figures, and what is wrong."""

    sent: int = 0
    confirmed: int = 0
    refused: int = 0
    unanswered: int = 0
    delivered: int = 0
    redelivered: int = 0
    """Deliveries of a message that some consumer had seen before."""
    unmarked: int = 0
    """Those of them that did not say so."""
    unmarked_by: Counter[str] = field(default_factory=Counter)
    """The same, by the first word of the consumer's name."""
    stored_unanswered: int = 0
    """Sends without an answer that are messages all the same: a resent line is there twice."""
    settled: int = 0
    """Acks with a confirmation."""
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def figures(self) -> str:
        """Return the figures and the number of problems in one line."""
        kinds = ("lost", "returned", "refused", "doubled", "shared", "phantom", "corrupt", "unordered", "torn")
        unmarked = f"{self.unmarked}{_by(self.unmarked_by)}"
        wrong = " ".join(f"{kind}={len(self.problems.get(kind, ()))}" for kind in kinds)
        return (
            f"sent={self.sent} confirmed={self.confirmed} refused={self.refused} unanswered={self.unanswered}"
            f" (stored all the same: {self.stored_unanswered}) delivered={self.delivered}"
            f" redelivered={self.redelivered} (unmarked: {unmarked}) acks_confirmed={self.settled} | {wrong}"
        )

    def check(self) -> None:
        """Raise AssertionError with the figures and the first problems of each kind, if there are any."""
        if self.problems:
            lines = [self.figures()]
            for kind, found in self.problems.items():
                lines.append(f"{kind}: {len(found)}")
                lines += [f"    {text}" for text in found[:SHOWN_MAX]]
            raise AssertionError("\n".join(lines))


def _by(counts: Counter[str]) -> str:
    return "".join([f" {name}={count}" for name, count in sorted(counts.items())])


class _Replay:
    """Goes through the record once, in order."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._sent: dict[str, Sent] = {}
        self._answers: dict[str, bool] = {}
        self._ids: dict[str, str] = {}
        """Value to message id."""
        self._settling: set[str] = set()
        self._unit_acks: dict[str, str] = {}
        """Message id to the unit that acks it."""
        self._came_back: set[str] = set()
        """Message ids delivered again after a unit acked them."""
        self._settled: dict[str, int] = {}
        """Message id to the boot in which its ack was confirmed."""
        self._held: Counter[tuple[str, int]] = Counter()
        """How many have a message, in a boot."""
        self._seen: set[str] = set()
        self._last_boot: dict[str, int] = {}
        """Message id to the last boot in which it was delivered."""
        self._last_seq: dict[tuple[str, str], int] = {}

    def take(self, event: Event) -> None:
        match event:
            case Sent():
                assert event.value not in self._sent, f"{event.value} is not unique"
                self._sent[event.value] = event
            case Answered():
                self._answers[event.value] = event.accepted
            case Delivered():
                self._delivered(event)
            case Requeued():
                self._held[event.message_id, event.boot] -= 1
            case Settling():
                self._settling.add(event.message_id)
                if event.unit:
                    self._unit_acks[event.message_id] = event.unit
            case Settled():
                self.verdict.settled += 1
                self._settled.setdefault(event.message_id, event.boot)
                last = self._last_boot.get(event.message_id, 0)
                if last > event.boot:  # seen late: a client read the confirmation when the next boot had begun
                    self._wrong(
                        "returned",
                        f"{event.message_id} in boot {last}, confirmed in boot {event.boot}",
                    )

    def _wrong(self, kind: str, text: str) -> None:
        self.verdict.problems[kind].append(text)

    def _delivered(self, event: Delivered) -> None:
        verdict = self.verdict
        verdict.delivered += 1
        what = f"{event.value} as {event.message_id} to {event.consumer} in boot {event.boot}"
        sent = self._sent.get(event.value)
        if sent is None or sent.queue != event.queue:
            self._wrong("phantom", f"{what}, from {event.queue}, body {event.body[:60]!r}")
            return
        if event.body != sent.body:
            self._wrong("corrupt", f"{what}: {event.body[:60]!r}, sent was {sent.body[:60]!r}")
        first_id = self._ids.setdefault(event.value, event.message_id)
        if first_id != event.message_id:
            self._wrong("doubled", f"{what}, and {first_id}")
        if self._settled.get(event.message_id, event.boot + 1) <= event.boot:
            self._wrong("returned", f"{what}, its ack was confirmed in boot {self._settled[event.message_id]}")
        if event.message_id in self._unit_acks:
            self._came_back.add(event.message_id)
        self._held[event.message_id, event.boot] += 1
        if self._held[event.message_id, event.boot] > 1:
            self._wrong("shared", what)
        if event.message_id in self._seen:
            verdict.redelivered += 1
            if event.tries == 0:
                verdict.unmarked += 1
                verdict.unmarked_by[event.consumer.partition(" ")[0]] += 1
        self._seen.add(event.message_id)
        self._last_boot[event.message_id] = max(event.boot, self._last_boot.get(event.message_id, 0))
        if event.tries == 0:
            self._in_order(event.consumer, event.message_id, f"first delivery of {what}")

    def _in_order(self, who: str, message_id: str, what: str) -> None:
        uid, _, seq = message_id.rpartition("-")
        last = self._last_seq.get((who, uid), 0)
        if int(seq) <= last:
            self._wrong("unordered", f"{what} behind seq {last}")
        self._last_seq[who, uid] = max(last, int(seq))

    def end(self) -> Verdict:
        verdict = self.verdict
        verdict.sent = len(self._sent)
        answers = Counter(self._answers.values())
        verdict.confirmed, verdict.refused = answers[True], answers[False]
        verdict.unanswered = verdict.sent - len(self._answers)
        units: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        for value, sent in self._sent.items():
            self._account(sent, self._answers.get(value), self._ids.get(value))
            if sent.unit:
                units[sent.unit].append((value, value in self._ids))
        for message_id, unit in self._unit_acks.items():
            units[unit].append((f"ack of {message_id}", message_id not in self._came_back))
        for unit, parts in units.items():
            if len({there for _, there in parts}) > 1:
                self._wrong("torn", f"unit {unit}: {parts}")
        return verdict

    def _account(self, sent: Sent, answer: bool | None, message_id: str | None) -> None:
        """Compare what was said of one send with what came of it; called in the order of sending."""
        value = sent.value
        if message_id is None:
            if answer:
                self._wrong("lost", f"{value}: confirmed, never delivered ({sent.queue}, by {sent.producer})")
            return
        if answer and message_id not in self._settling:
            self._wrong("lost", f"{value}: confirmed, delivered as {message_id}, gone before it was settled")
        if answer is None:
            self.verdict.stored_unanswered += 1
        elif not answer:
            self._wrong("refused", f"{value}: refused, and there as {message_id}")
        self._in_order(f"producer {sent.producer}", message_id, f"{value} of {sent.producer}, stored as {message_id},")
