"""Names in a simulated run: messages with few names, so that most find their name taken, or replace another one.

It has dice of its own. What is judged beside the history, across crashes, and except by an undo:

- what was left out never comes out
- the one whose name it was has that name, and was not confirmed to be gone before
- no two messages of a queue have the same unique name at the end
- of those that replace each other the last that was confirmed is there, and others only if they were in flight before
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import REPLACE, UNIQUE, changed
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
        self._names = "abcXYZ" if self._is_focus else "abcdefghijklWXYZ"
        """Those in capitals are for messages that replace each other."""
        self._replaceable: dict[tuple[str, str], list[int]] = {}
        """By queue and name, the tokens of messages that later ones may replace."""
        self._is_draining = False
        self._in_flight: set[tuple[str, int]] = set()
        """By queue and seq, what was in flight when it was looked at."""
        self._handed: set[int] = set()
        """What was handed out before the drain."""
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
        self._replace(queue, names, tokens)
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

    def _replace(self, queue: LocalQueue, names: list[str], tokens: list[int]) -> None:
        """Those of these that replace others may do so from now on."""
        for name, token in zip(names, tokens, strict=True):
            if name.isupper():
                before = self._replaceable.setdefault((queue.uid, name), [])
                self._run.doom(before)
                before.append(token)

    def look(self) -> None:
        """Note what is in flight before the drain: a later message with its name does not replace it.

        After a crash nobody may have received it: that of a lease or pop is in flight before it is answered.
        """
        if self._is_on and not self._is_draining:
            for queue in self._run.broker.queues():
                for group in queue.index.groups.values():
                    self._in_flight |= {(str(queue.name), seq) for seq in group.in_flight}

    def drain(self) -> None:
        """From now on, everything is handed out."""
        self._is_draining = True
        self._handed = set(self._run.history.handed)

    def _message(self, name: str, delay_ms: int) -> Message:
        history = self._run.history
        message = history.message(self._rng.randrange(10, 200), delay_ms)
        header = REPLACE if name.isupper() else UNIQUE
        history.names[history.token(message)] = f"{header}:{name}\n".encode()
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
        """Demand that of what a queue held no two had the same name, or that they were not there to be replaced."""
        history = self._run.history
        kept = [message for message in messages if history.token(message) not in history.undone]
        names = Counter(value for message in kept for name, value in headers.decode(message.headers) if name == UNIQUE)
        if twice := [name for name, count in names.items() if count > 1]:
            raise Violation(f"{queue}: more than one message is named {twice}")
        last: dict[str, Message] = {}
        for message in kept:
            for name in [value for header, value in headers.decode(message.headers) if header == REPLACE]:
                before = last.get(name)
                if before is not None and not self._was_in_flight(queue, before):
                    raise Violation(f"{queue}: {history.token(before)}, named {name}, waited beside a later one")
                last[name] = message

    def _was_in_flight(self, queue: str, message: Message) -> bool:
        return self._run.history.token(message) in self._handed or (queue, message.seq) in self._in_flight
