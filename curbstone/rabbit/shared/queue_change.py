"""Changes of a queue's definition.

A change takes effect in this gateway immediately, so that changes add up. Then it is written to the registry, for all
gateways, and then carried out in RabbitMQ. If a gateway dies half-way, or loses its connection, the next request for
the change, at any gateway, carries out the missing steps. Every step is idempotent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.values import Done
from curbstone.rabbit.shared.registry import Definition

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine
    from curbstone.rabbit.queue import Queue


def change(engine: Engine, queue: Queue, after: Definition, do: str, on_done: Done, **members: Any) -> None:
    """Change a queue's definition. If that fails, this gateway restores the one in the registry."""
    before = queue.definition
    engine.set_definition(queue, after)
    queue.changes_under_way += 1

    def ended(error: CurbstoneError | None) -> None:
        if error is not None and not queue.is_closed:
            engine.set_definition(queue, engine.registered(queue) or before)
        queue.change_ended()
        on_done(error)

    def registered(error: CurbstoneError | None) -> None:
        if error is not None or queue.is_closed:
            ended(error or NoSuchQueue(f"no such queue: {queue.name}"))
        else:
            queue.declaration.changed(before, after, ended)

    def opened(error: CurbstoneError | None) -> None:
        if error is not None:
            ended(error)
        elif queue.name.is_private:
            registered(None)
        else:
            engine.propose({"do": do, "uid": queue.uid, **members}, registered)

    queue.when_open(opened)


def reapply(queue: Queue, without: Definition, on_done: Done) -> None:
    """Repeat in RabbitMQ the difference between `without` and the queue's definition."""

    def opened(error: CurbstoneError | None) -> None:
        if error is not None or queue.is_closed:
            on_done(error or NoSuchQueue(f"no such queue: {queue.name}"))
        else:
            queue.declaration.changed(without, queue.definition, on_done)

    queue.when_open(opened)


def replace_definition(definition: Definition, **changes: Any) -> Definition:
    """Return a queue's definition with some fields changed."""
    changed = replace(definition, **changes)
    return replace(changed, groups=(changed.groups - set(definition.options.groups)) | set(changed.options.groups))
