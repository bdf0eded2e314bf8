"""Purges of a simulated run: a queue is emptied of what nobody holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.values import Peeked
from tests.sim.reader import is_pending

if TYPE_CHECKING:
    from tests.sim.run import Run


def purge(run: Run) -> None:
    """Empty a queue of what nobody holds."""
    if run.rng.random() < 0.7:
        return
    run.host.settle()
    queue = run.any_queue()
    run.host.settle()
    answers = 0
    present: list[Message] = []
    alone = len(run.readers) == 1  # what a peek says of a message, it says of its first group

    def peeked(found: list[Peeked] | CurbstoneError) -> None:
        nonlocal answers
        answers += 1
        assert isinstance(found, list)
        there = [entry.message for entry in found if entry.state != "wip" or not alone]
        present.extend([message for message in there if not run.reader or is_pending(queue, message)])

    queue.peek(100_000, peeked)
    run.host.settle()
    if not answers:  # a read waits for time to pass, or for a commit that does
        return
    tokens = [token for message in present for token in run.history.tokens(message)]
    tokens = [token for token in tokens if token not in run.history.live]
    run.doom(tokens)

    def purged(error: CurbstoneError | None, _count: int) -> None:
        if error is None and alone:
            run.history.gone.update(tokens)

    if run.reader:
        run.reader.is_purged = True
    queue.purge(purged, keep=run.undoing.keeps())
