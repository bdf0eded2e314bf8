"""Unique names in a simulated run: messages with few names, so that most find their name taken.

It has dice of its own. What is judged beside the history:

- what was left out never comes out
- the one whose name it was has that name, and was not confirmed to be gone before
- no two messages of a queue have the same name at the end, across crashes, except by an undo
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import UNIQUE, changed
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run


class Naming:
    """The names of one run; `focus` names them."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} unique")
        self._is_focus = focus == "unique"
        self._is_on = self._is_focus or self._rng.random() < 0.2
        self._names = "abc" if self._is_focus else "abcdefghijkl"
        self._stored: dict[tuple[str, int], tuple[str, int]] = {}
        """By queue and seq, the name and the token of a message that was confirmed."""

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"name": 8 if self._is_focus else 2} if self._is_on else {}

    def act(self) -> None:
        """Publish a few with names, maybe atomically, maybe with a delay."""
        run, rng, history = self._run, self._rng, self._run.history
        queue = run.any_queue()
        names = [rng.choice(self._names) for _ in range(rng.choice([1, 1, 2, 4]))]
        messages = [self._message(name, rng.choice([0, 0, 50])) for name in names]
        tokens = [history.token(message) for message in messages]
        gone = set(history.gone)
        end = queue.state.committed_end
        at = 0

        def done(error: CurbstoneError | None, _first_seq: int, count: int) -> None:
            nonlocal at
            for place in range(at, at + count):
                message, token = messages[place], tokens[place]
                if error is not None:
                    if isinstance(error, QueueFull):
                        history.refused.add(token)
                elif message.is_duplicate:
                    history.refused.add(token)
                    self._left_out(queue, message, names[place], gone)
                    if message.seq >= end:
                        run.states.saw("a message is left out because of one that is on its way")
                else:
                    history.confirmed.add(token)
                    self._stored[queue.uid, message.seq] = names[place], token
            at += count

        queue.publish(messages, run.answers.in_order(queue, len(messages), done), atomic=rng.random() < 0.3)

    def _message(self, name: str, delay_ms: int) -> Message:
        history = self._run.history
        message = history.message(self._rng.randrange(10, 200), delay_ms)
        history.names[history.token(message)] = f"{UNIQUE}:{name}\n".encode()
        message.headers = history.headers(history.token(message))
        message.orders = changed(message.orders, named=True)
        return message

    def _left_out(self, queue: LocalQueue, message: Message, name: str, gone: set[int]) -> None:
        """A message was left out because of another; what is wrong with that is kept for `History.check`."""
        run, history = self._run, self._run.history
        whose, token = self._stored.get((queue.uid, message.seq), (name, 0))
        if whose != name:
            history.violations.append(Violation(f"{queue.name}: {name} was left out because of {whose}"))
        if token in gone - history.undone and not queue.meta.groups:
            history.violations.append(Violation(f"{queue.name}: {name} was left out because of one that was gone"))
        if run.crashes:
            run.states.saw("a message is left out after a crash")

    def judge(self, queue: str, messages: list[Message]) -> None:
        """Demand that of what a queue held no two had the same name."""
        history = self._run.history
        kept = [message for message in messages if history.token(message) not in history.undone]
        names = Counter(value for message in kept for name, value in headers.decode(message.headers) if name == UNIQUE)
        if twice := [name for name, count in names.items() if count > 1]:
            raise Violation(f"{queue}: more than one message is named {twice}")
