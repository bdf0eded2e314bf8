"""Changes of what a queue is: known here at once, so that they add up, then for all, then done in RabbitMQ.

A gateway may die half-way, or hear nothing any more; whoever asks again, here or elsewhere, has what is missing done.
All of it is idempotent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.values import Done
from curbstone.rabbit.inside import Engine, Queue
from curbstone.rabbit.registry import Known


def change(engine: Engine, queue: Queue, after: Known, do: str, on_done: Done, **members: Any) -> None:
    """Change what a queue is; if that fails, this gateway goes back to what the registry says."""
    before = queue.known
    engine.know(queue, after)
    queue.changes_under_way += 1

    def ended(error: CurbstoneError | None) -> None:
        if error is not None and not queue.is_closed:
            engine.know(queue, engine.registered(queue) or before)
        queue.change_ended()
        on_done(error)

    def registered(error: CurbstoneError | None) -> None:
        if error is not None or queue.is_closed:
            ended(error or NoSuchQueue(f"no such queue: {queue.name}"))
        else:
            queue.opening.changed(before, after, ended)

    def opened(error: CurbstoneError | None) -> None:
        if error is not None:
            ended(error)
        elif queue.name.is_private:
            registered(None)
        else:
            engine.propose({"do": do, "uid": queue.uid, **members}, registered)

    queue.when_open(opened)


def make_sure(queue: Queue, without: Known, on_done: Done) -> None:
    """Do again in RabbitMQ what makes the difference between `without` and what is known of a queue."""

    def opened(error: CurbstoneError | None) -> None:
        if error is not None or queue.is_closed:
            on_done(error or NoSuchQueue(f"no such queue: {queue.name}"))
        else:
            queue.opening.changed(without, queue.known, on_done)

    queue.when_open(opened)


def replace_known(known: Known, **changes: Any) -> Known:
    """Return what is known of a queue, changed."""
    changed = replace(known, **changes)
    return replace(changed, groups=(changed.groups - set(known.options.groups)) | set(changed.options.groups))
