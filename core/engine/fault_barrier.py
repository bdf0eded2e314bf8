"""Limits the damage of an unexpected exception: it ends one queue, or loses one answer, and nothing else.

If a queue's own turn, timer or job raises, what the queue has in memory can't be trusted any more. It then refuses
everything until the next start, which restores it from its log; all other queues continue. If a caller's callback
raises, such as one that gets an answer, the exception is logged and the queue continues. Both are bugs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.shared import Shared
from curbstone.core.host import BeginWrite, Job, JobDone, Timer

logger = logging.getLogger("curbstone.core")


class FaultBarrier:
    """The host of one queue. What it calls can break that queue, but nothing else. Implements `core.host.Host`."""

    __slots__ = ("_break_down", "_faults", "_host", "_meta", "now_ms", "now_us", "wall_ms")

    def __init__(self, shared: Shared, meta: Meta, break_down: Callable[[Exception], None]) -> None:
        self._host = shared.host
        self._meta = meta
        self._faults = shared.alarms.faults
        self._break_down = break_down
        """Called with an exception that the queue itself has raised."""
        self.now_ms = shared.now_ms
        self.now_us = shared.now_us
        self.wall_ms = shared.wall_ms

    def call_soon(self, fn: Callable[[], object]) -> object:
        """Call `fn` in the next turn, as a callback from outside the queue."""
        return self._host.call_soon(partial(self.notify, fn))

    def call_later(self, delay_ms: int, fn: Callable[[], object]) -> Timer:
        return self._host.call_later(delay_ms, partial(self.contain, fn))

    def submit(self, job: Job, done: JobDone, begin: BeginWrite | None = None) -> None:
        self._host.submit(job, partial(self.contain, done), begin)

    def contain(self, fn: Callable[..., object], *args: Any) -> None:
        """Call a function of the queue itself. If it raises, the queue breaks down."""
        try:
            fn(*args)
        except Exception as error:
            self._faults.append(error)
            self._break_down(error)

    def notify(self, fn: Callable[..., object], *args: Any) -> None:
        """Call a callback from outside the queue. If it raises, that is logged."""
        try:
            fn(*args)
        except Exception as error:
            self._faults.append(error)
            logger.exception("%s: a callback of a caller raised an exception", self._meta.label)
