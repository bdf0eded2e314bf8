"""How far an exception goes that nobody expected: as far as one queue, or one who was to be answered, and no further.

Whatever a queue's turns, timers and jobs raise ends that queue: what it has in memory can't be believed any more. It
refuses everything until the next start, which makes it anew from its log; all others go on. An exception of whoever
is told something is logged, and the queue goes on. Both are bugs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from curbstone.core.errors import Unavailable
from curbstone.core.host import Host, Job, JobDone, Timer

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

logger = logging.getLogger("curbstone.core")


class QueueHost:
    """The host of one queue: what it calls can break that queue, and nothing else. Implements `core.host.Host`."""

    def __init__(self, host: Host, queue: Queue) -> None:
        self._host = host
        self._queue = queue
        self.now_ms = host.now_ms
        self.now_us = host.now_us
        self.wall_ms = host.wall_ms

    def call_soon(self, fn: Callable[[], object]) -> object:
        """See `Host.call_soon`. What comes in a later turn is an answer."""
        return self._host.call_soon(partial(tell, self._queue, fn))

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        """See `Host.call_later`."""
        return self._host.call_later(delay_ms, partial(contained, self._queue, fn))

    def submit(self, job: Job, done: JobDone) -> None:
        """See `Host.submit`."""
        self._host.submit(job, partial(contained, self._queue, done))


def contained(queue: Queue, fn: Callable[..., object], *args: Any) -> None:
    """Call what belongs to a queue."""
    try:
        fn(*args)
    except Exception as error:
        break_down(queue, error)


def tell(queue: Queue, fn: Callable[..., object], *args: Any) -> None:
    """Call somebody who is told something of a queue, and is not part of it."""
    try:
        fn(*args)
    except Exception as error:
        queue.broker.troubles.faults.append(error)
        logger.exception("%s: somebody who was told something of it failed", queue.label)


def unbroken(queue: Queue) -> Queue:
    """Return a queue; raise Unavailable if it broke down."""
    if queue.broken:
        raise Unavailable(queue.broken)
    return queue


def break_down(queue: Queue, error: Exception) -> None:
    """Serve a queue no more: whoever waits for it is told, and so is health."""
    queue.broker.troubles.faults.append(error)
    if queue.broken:
        return
    what = f"broke down, and is not served until the next start: {type(error).__name__}: {error}"
    logger.error("%s broke down", queue.label, exc_info=error, extra={"queue": queue.label})
    queue.broken = f"{queue.label} {what}"
    refusal = Unavailable(queue.broken)
    tell(queue, queue.writer.abandon, refusal)
    queue.is_closed = False
    tell(queue, queue.close, refusal)
    queue.is_closed = True
    queue.broker.troubles.note(queue.label, what)
