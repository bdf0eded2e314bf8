"""Numbered producers in a simulated run: they send on and on, and again what was not confirmed, with the same numbers.

A message that is sent again has the token it had, so what is stored twice is found by the history of the run. Here it
is judged that each producer's numbers lie in the queue in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.orders import orders_in
from curbstone.core.values import Numbered, producer_key
from tests.sim.answers import Answers
from tests.sim.history import History, Violation


class _Line:
    """What one producer sends to one life of a queue."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.messages: list[Message] = []
        """Number n at n - 1."""
        self.confirmed = 0
        """All up to this number."""


class Producers:
    """The producers of a run."""

    def __init__(self, history: History, answers: Answers, seed: int, focus: str) -> None:
        self._rng = Random(f"producers {seed}")
        self._history = history
        self._answers = answers
        self._is_here = focus == "numbers" or self._rng.random() < 0.3
        self._weight = 8 if focus == "numbers" else 2
        self._lines: dict[tuple[str, str], _Line] = {}
        self._numbers: dict[int, tuple[str, bytes, int]] = {}
        """Queue, producer and number, by token."""
        self.repeats = 0

    def weights(self) -> dict[str, int]:
        """Return how often it is done, where it is at all."""
        return {"number": self._weight} if self._is_here else {}

    def step(self, queue: LocalQueue, largest: int) -> None:
        """Send some numbers to a queue, maybe from earlier ones on."""
        rng = self._rng
        name = rng.choice("stuvwxyz")
        line = self._lines.setdefault((queue.uid, name), _Line(producer_key("", name)))
        first = rng.randint(max(1, line.confirmed - rng.choice([2, 2, 30])), line.confirmed + 1)
        last = min(first + rng.choice([0, 0, 2, 10]), line.confirmed + 30)
        self._send(queue, line, first, last, largest)
        if rng.random() < 0.5:  # on its way before anything is known of what is in front
            self._send(queue, line, last + 1, last + 1 + rng.choice([0, 2]), 40)

    def _send(self, queue: LocalQueue, line: _Line, first: int, last: int, largest: int) -> None:
        """Send these numbers; make the messages that are not there yet."""
        rng = self._rng
        while len(line.messages) < last:
            message = self._history.message(rng.randrange(10, largest + 1))
            line.messages.append(message)
            self._numbers[self._history.token(message)] = str(queue.name), line.key, len(line.messages)
        messages = [
            Message(message.body, message.headers, orders_in(message.headers))
            for message in line.messages[first - 1 : last]
        ]
        at = first

        def done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            nonlocal at
            tokens = [self._history.token(message) for message in line.messages[at - 1 : at - 1 + count]]
            at += count
            if error is None:
                self.repeats += not first_seq
                self._history.confirmed.update(tokens)
                line.confirmed = max(line.confirmed, at - 1)

        answered = self._answers.in_order(queue, len(messages), done)
        queue.publish(messages, answered, atomic=rng.random() < 0.2, numbered=Numbered(line.key, first, first - 1))

    def judge(self, queue: str, messages: Sequence[Message]) -> None:
        """Demand that what a queue held has the order of the numbers; `messages` by their seqs."""
        last: dict[bytes, int] = {}
        for message in messages:
            sent_to, key, number = self._numbers.get(self._history.token(message), ("", b"", 0))
            if sent_to != queue:  # not numbered, or a dead letter
                continue
            if last.get(key, 0) >= number:
                raise Violation(f"{queue}: number {number} of a producer is stored behind {last[key]}")
            last[key] = number
