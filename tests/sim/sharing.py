"""Many queues of a simulated run publish in one turn, so that they share a sync; only in runs that have it.

It has dice of its own. Rounds follow each other until redo files are full; the disk may do little or much meanwhile.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.names import queue_name

if TYPE_CHECKING:
    from tests.sim.run import Run

NAMES = tuple(queue_name(name) for name in ("c", "d", "e"))


class Sharing:
    """What the queues of one run share; `focus` names it."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} sharing")
        self._is_focus = focus == "share"
        self.is_on = self._rng.random() < 0.15 or self._is_focus
        self.names = NAMES[: self._rng.choice([1, 3])] if self.is_on else ()
        """The queues that there are for this."""

    def weights(self) -> dict[str, int]:
        """Return how often its action comes."""
        return {"share": 6 if self._is_focus else 1} if self.is_on else {}

    def act(self) -> None:
        """Publish a little to most queues at once, again and again."""
        run = self._run
        size = self._rng.choice([20, 20, 200])
        if self._rng.random() < 0.3:
            run.disk.crash_in = self._rng.randrange(80)
        for _ in range(self._rng.choice([2, 12])):
            for name in run.names:
                if self._rng.random() < 0.8:
                    self._publish(run.broker.ensure(name), size)
            run.host.turn()
            for _ in range(self._rng.choice([0, 1, 3, 9])):
                run.host.work()
            run.host.turn()
            run.states.stepped()

    def _publish(self, queue: LocalQueue, size: int) -> None:
        run, history = self._run, self._run.history
        message = history.message(size)
        token = history.token(message)

        def done(error: CurbstoneError | None, first_seq: int, _covered: int) -> None:
            if error is None:
                history.confirmed.add(token)
                run.ordered.setdefault(queue.name, []).append(token)
                if run.reader:
                    run.reader.published(queue, first_seq, [token])
            elif isinstance(error, QueueFull):
                history.refused.add(token)

        queue.publish([message], run.answers.in_order(queue, 1, done))
