"""The rules for options that depend on other options, on the server, or on what the queue holds."""

from __future__ import annotations

from curbstone.core.engine.log.meta import meta_reserve
from curbstone.core.engine.queue import Queue
from curbstone.core.errors import BadRequest, Conflict
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.schemas import Schemas


def check_options(name: QueueName, options: QueueOptions, queue: Queue | None, max_cap: int, schemas: Schemas) -> None:
    """Raise BadRequest or Conflict if a queue, or a new one, can't have these options."""
    if options.dead_letter == str(name):
        raise BadRequest("bad option dead_letter: a queue can't be its own")
    if options.schema and (queue is None or options.schema != queue.options.schema):
        schemas.rule(options.schema)
    had = queue.options.cap if queue is not None else 0
    if options.cap > max(max_cap, had) and not name.is_private:
        raise BadRequest(f"bad option cap: {options.cap} is more than the server's --max-cap of {max_cap}")
    if queue is None or not queue.meta_writer.is_open or options.cap >= had:
        return
    needed = queue.log.needed_under(options.cap, meta_reserve(options.cap))
    if options.cap < needed:
        held = f"the queue holds {queue.log.bytes} bytes and needs {needed}"
        raise Conflict(f"{held} to settle and clean them, more than a cap of {options.cap}")
