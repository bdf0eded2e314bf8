"""Undo in a simulated run: what was acked, popped or purged returns; only in runs that have it.

It has dice of its own. What is judged beside the history:

- as many return as the answer says; each was settled before, and is pending afterwards
- what has returned and is confirmed comes out again, once, across crashes too
- what has not return does not come out
- nothing returns of which a dead letter lives: it would come out twice
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import Conflict, CurbstoneError
from curbstone.core.message import Message
from curbstone.core.values import Peeked, Undone, UndoRequest
from tests.sim.history import Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

SECONDS = (0, 1, 10, 3600)


class Undoing:
    """The undos of one run; `focus` names them."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} undo")
        self._is_focus = focus == "undo"
        self.is_on = self._rng.random() < 0.2 or self._is_focus
        self.came_back = 0

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"undo": 8 if self._is_focus else 2} if self.is_on else {}

    def keeps(self) -> bool:
        """Return whether the next purge can be undone."""
        return self.is_on and self._rng.random() < 0.5

    def act(self) -> None:
        """Set the option, or undo: with nothing else under way, or amid of it."""
        run = self._run
        what = self._rng.choice(["option", "quiet", "quiet", "amid"])
        if what != "amid":
            run.host.settle()
        queue = run.any_queue()
        group = self._rng.choice(run.readers)
        wanted = UndoRequest(self._rng.choice([1, 3, 1000]), self._rng.choice([0, 0, 1000]), 0, group)
        if what == "option":
            run.directories.declare(queue.name, {"undo": self._rng.choice(SECONDS)})
        elif what == "amid":
            self._let_back(group)
            queue.undo(wanted, self._amid)
        else:
            run.host.settle()
            self._quiet(queue, wanted)

    @staticmethod
    def _amid(error: CurbstoneError | None, undone: Undone) -> None:
        if isinstance(error, Conflict) and undone.restored and "restored" not in error.members:
            raise Violation(f"{undone} and {error}")

    def _let_back(self, group: str) -> set[int]:
        """Whatever was settled may return; return what was confirmed to be gone until now."""
        history, run = self._run.history, self._run
        gone = {token for token in history.gone if history.is_of(token, group)}
        doomed = {token for token in history.doomed if history.is_of(token, group)}
        history.undone_early |= doomed - gone
        history.undone |= doomed
        history.gone -= gone
        run.turns.go_back()
        return gone

    def _quiet(self, queue: LocalQueue, wanted: UndoRequest) -> None:
        """Undo, wait, and see what returned."""
        run, history = self._run, self._run.history
        before = self._pending(queue, wanted.group)
        if before is None:
            return
        gone = self._let_back(wanted.group)
        answers: list[tuple[CurbstoneError | None, Undone]] = []
        queue.undo(wanted, lambda error, undone: answers.append((error, undone)))
        run.host.settle()
        after = self._pending(queue, wanted.group)
        if not answers or answers[0][0] is not None or after is None:
            return  # what failed may have returned, or may with the next start
        back = [after[seq] for seq in after.keys() - before.keys()]
        undone = answers[0][1]
        if len(back) != undone.restored or len(back) > wanted.limit:
            raise Violation(f"{queue.name}: {undone}, and {len(back)} returned of {wanted.limit}")
        tokens = {history.token(message, wanted.group): message for message in back}
        if unasked := tokens.keys() - history.doomed:
            raise Violation(f"{queue.name}: {unasked} returned, and nobody had settled it")
        self.came_back += len(back)
        history.gone |= gone - tokens.keys()
        sure = {token for token, message in tokens.items() if not message.expires_ms}
        history.confirmed |= sure
        history.doomed -= sure
        history.doomed_alone -= sure

    def _pending(self, queue: LocalQueue, group: str) -> dict[int, Message] | None:
        """Return what is pending in a group, by seq; None if that can't be known now."""
        answers: list[list[Peeked] | CurbstoneError] = []
        queue.peek(100_000, answers.append, group=group)
        self._run.host.settle()
        if not answers or isinstance(answers[0], CurbstoneError):
            return None
        return {entry.message.seq: entry.message for entry in answers[0]}
