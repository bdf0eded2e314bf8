"""Random histories of declared groups: what each has pending, against sets in plain Python, also after restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.frames import decode_frame
from curbstone.core.message import Message
from curbstone.core.orders import Orders
from curbstone.core.positions import EARLIEST, LATEST, Frame, Since, Start, Wanted
from curbstone.core.values import Outcome
from tests.kit.lab import Lab

NAMES = ("a", "b", "c")
CAP = 96 * 1024


@dataclass
class Reader:
    """A declared group."""

    skips: bool
    pending: set[int]
    lost: int = 0


@dataclass
class ModelMessage:
    """A message."""

    body: bytes
    time_ms: int
    expires_ms: int
    groups: tuple[str, ...]


@dataclass
class Model:
    """All there is to know."""

    messages: dict[int, ModelMessage] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    others: dict[str, set[int]] = field(default_factory=lambda: {"": set(), "x": set()})
    """What is pending in groups that are not declared."""

    def pending(self) -> dict[str, set[int]]:
        """Return what is pending, by group."""
        return {**{name: reader.pending for name, reader in self.readers.items()}, **self.others}

    def live(self) -> set[int]:
        return set().union(*self.pending().values())


class History:
    """The engine's queue and the model's, and the dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.lab = Lab(seed=seed)
        self.queue = self.lab.queue(cap=CAP)
        self.model = Model()
        self.steps: list[str] = []

    def run(self, steps: int) -> None:
        """Do some steps and compare after each."""
        for _ in range(steps):
            action = self.dice.choice(ACTIONS)
            self.steps.append(action.__name__)
            action(self)
            self.compare()

    def call(self, call: Callable[[Callable[..., None]], object]) -> Any:
        """Return what comes after the error, or raise that."""
        error, *results = self.lab.answer(call, passing_ms=100)
        if isinstance(error, CurbstoneError):
            raise error
        return results[0]

    # --- what is done

    def publish(self) -> None:
        groups: tuple[str, ...] = self.dice.choice([(), (), (), ("x",), ("a", "x"), ("b",)])
        ttl_ms = self.dice.choice([0, 0, 0, 3000])
        delay_ms = self.dice.choice([0, 0, 0, 2000])
        size = self.dice.choice([10, 200, 1500])
        bodies = [b"%d" % self.dice.randrange(10**9) + bytes(size) for _ in range(self.dice.choice([1, 5, 20]))]
        messages = [Message(body, orders=Orders(groups=groups, ttl_ms=ttl_ms, delay_ms=delay_ms)) for body in bodies]
        now_ms = self.lab.host.now_ms()
        answers = self.lab.publish_answers(self.queue, messages)
        done = 0
        for error, first, count in answers:
            assert error is None or isinstance(error, QueueFull)
            for seq in range(first, first + count) if error is None else ():
                expires_ms = now_ms + ttl_ms if ttl_ms else 0
                self.model.messages[seq] = ModelMessage(bodies[done], self.lab.host.wall_ms(), expires_ms, groups)
                self.entitle(seq, groups)
                done += 1
            done += count if error is not None else 0

    def entitle(self, seq: int, groups: tuple[str, ...]) -> None:
        for name in groups or ("", *self.model.readers):
            if name in self.model.readers:
                self.model.readers[name].pending.add(seq)
            else:
                self.model.others.setdefault(name, set()).add(seq)

    def take(self) -> None:
        """Lease some, in any group; ack some of them and give the others back."""
        group = self.dice.choice(["", "", "x", *NAMES])
        leases = self.lab.lease(self.queue, self.dice.choice([1, 10, 50]), group=group)
        acked = [lease for lease in leases if self.dice.random() < 0.8]
        for chosen, outcome in ((acked, Outcome.ACK), ([x for x in leases if x not in acked], Outcome.NACK)):
            tokens = [lease.token for lease in chosen]
            self.lab.answer(lambda done, t=tokens, o=outcome: self.queue.settle_leases(t, o, done))  # type: ignore[misc]
        pending = self.model.pending().get(group, set())
        seqs = {lease.delivery.message.seq for lease in acked}
        assert seqs <= pending
        pending -= seqs

    def declare(self) -> None:
        name = self.dice.choice(NAMES)
        skips = self.dice.choice([None, True, False])
        known = self.model.readers.get(name)
        start, first = self.start()
        self.steps[-1] += f" {name} {start} {skips}"
        try:
            info = self.call(lambda done: self.queue.reading.declare(name, start, skips, done))
        except QueueFull:
            assert known is None
            return
        if known is not None:
            known.skips = known.skips if skips is None else skips
            return
        live = self.model.live()
        named = self.model.others.pop(name, set())
        seen = {seq for seq in live if seq >= first and not self.model.messages[seq].groups}
        self.model.readers[name] = Reader(bool(skips), seen | named)
        assert (info.lost, info.floor) == (0, 0)

    def start(self) -> tuple[Start, int]:
        """Return a start, and the seq it stands for."""
        following = self.queue.reading.next
        seq = self.dice.randrange(following) + 1
        time_ms = self.lab.host.wall_ms() - self.dice.randrange(5000)
        later = [s for s in self.model.live() if self.model.messages[s].time_ms >= time_ms]
        starts: list[tuple[Start, int]] = [(EARLIEST, 0), (EARLIEST, 0), (LATEST, following), (seq, seq)]
        return self.dice.choice([*starts, (Since(time_ms), min(later, default=following))])

    def remove(self) -> None:
        if self.dice.random() < 0.5:
            return
        name = self.dice.choice(NAMES)
        self.lab.queue(groups=[other for other in self.queue.options.groups if other != name])
        self.model.readers.pop(name, None)

    def ack(self) -> None:
        for name, reader in self.model.readers.items():
            seq = self.dice.randrange(self.queue.reading.next)
            self.call(lambda done, n=name, s=seq: self.queue.reading.ack_to(n, s, done))  # type: ignore[misc]
            reader.pending = {other for other in reader.pending if other > seq}

    def purge(self) -> None:
        if self.dice.random() < 0.8:
            return
        assert self.lab.purge(self.queue) == len(self.model.live())
        for reader in self.model.readers.values():
            reader.lost += len(reader.pending)
            reader.pending.clear()
        for pending in self.model.others.values():
            pending.clear()

    def time(self) -> None:
        self.lab.pass_time(self.dice.choice([100, 2000]))
        now_ms = self.lab.host.now_ms()
        gone = {seq for seq, known in self.model.messages.items() if 0 < known.expires_ms <= now_ms}
        for pending in self.model.pending().values():
            pending -= gone

    def restart(self) -> None:
        how = self.dice.choice(["shutdown", "kill", "power"])
        self.steps[-1] += f" {how}"
        self.lab.restart(how, after_ms=0)
        self.queue = self.lab.reopened(self.queue)
        assert not self.queue.damaged
        self.time()

    # --- what it must look like

    def compare(self) -> None:
        reading = self.queue.reading
        assert reading.names() == sorted(self.model.readers)
        for name, reader in self.model.readers.items():
            info = reading.info(name)
            if info.lost != reader.lost:
                assert reader.skips
                given_up = {seq for seq in reader.pending if seq < info.floor}
                assert info.lost == reader.lost + len(given_up)
                reader.pending -= given_up
                reader.lost = info.lost
            assert info.pending == len(reader.pending)
            assert info.position == min(reader.pending, default=reading.next)
            assert info.floor <= info.position and info.on_full == ("skip" if reader.skips else "hold")
        assert reading.first() == min(self.model.live(), default=reading.next)
        groups = {name: reader.pending for name, reader in self.model.readers.items()}
        self.browse(*self.dice.choice([(None, self.model.live()), *groups.items()]))

    def browse(self, group: str | None, pending: set[int]) -> None:
        reading = self.queue.reading
        first = reading.first() if group is None else reading.position(group)
        start = self.dice.randrange(first, reading.next + 1)
        end = self.dice.choice([None, self.dice.randrange(start, reading.next + 2)])
        limit, size = self.dice.choice([1, 5, 100_000]), self.dice.choice([1, 3000, 1 << 20])
        wanted = Wanted(start, end, limit, size, group)

        def render(frames: list[Frame]) -> dict[int, bytes]:
            return {message.seq: message.body for frame in frames for message, _ in decode_frame(frame)}

        error, found, following = self.lab.answer(lambda done: self.queue.reading.browse(wanted, render, done))
        assert error is None
        there = sorted(seq for seq in pending if start <= seq < (reading.next if end is None else end))
        assert list(found) == there[: len(found)] and (found or not there) and len(found) <= limit
        assert all(self.model.messages[seq].body == body for seq, body in found.items())
        assert not [seq for seq in there[len(found) :] if seq < following]


ACTIONS: list[Callable[[History], None]] = [
    *[History.publish] * 4, *[History.take] * 3, *[History.declare] * 2, *[History.ack] * 2,
    History.remove, History.purge, History.time, History.restart,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_groups_match_the_model(seed: int) -> None:
    history = History(seed)
    try:
        history.run(120)
    except BaseException as error:
        error.add_note(f"seed {seed}, after {len(history.steps)} steps: {', '.join(history.steps[-25:])}")
        raise
