"""The counts of one queue at the last query.

The broker counts the ready messages and the consumers. Each gateway counts the unsettled messages of its own clients,
and sends the number to the others every second. The number of delayed messages, and the size of a queue, are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.values import UNNAMED, Counts, Done

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

LOOK_MS_MIN = 250
LOOK_MS_MAX = 2000
"""The longest time between two queries while there are watchers. After a change here the next query is sooner."""


class Counting:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._seen: dict[str, tuple[int, int]] = {}
        """The counts of ready messages and of consumers, by group."""
        self._watchers: list[Callable[[], None]] = []
        self._pause_ms = LOOK_MS_MIN
        self._is_looking = False
        self._last_notified: object = None
        self.is_sure = False
        """Whether RabbitMQ has answered the last query."""
        self._waiting: list[Done] = []
        """Callbacks for the next query."""

    def counts(self, group: str) -> Counts:
        """Return the last known counts of a group."""
        queue = self._queue
        ready, _ = self._seen.get(group, (0, 0))
        consumers = sum(consumers for _, consumers in self._seen.values())
        own = sum(consumer.surplus for consumer in queue.consumers) + queue.leasing.waiting
        wip = self.unsettled(group) + queue.engine.unsettled.of_other_gateways(queue.uid, group)
        return Counts(ready, wip, 0, 0, max(consumers - own, len(queue.consumers)))

    def unsettled(self, group: str) -> int:
        """Return the number of unsettled messages of a group at this gateway."""
        queue = self._queue
        held = sum(len(consumer.unsettled) for consumer in queue.consumers if consumer.group == group)
        return held + queue.leasing.unsettled(group)

    def refresh(self, on_done: Done) -> None:
        """Query, then call back. Simultaneous requests share one query."""
        self._waiting.append(on_done)
        if len(self._waiting) == 1:
            self._queue.engine.host.call_soon(self._count)

    def _count(self) -> None:
        waiting, self._waiting = self._waiting, []
        queue = self._queue
        groups = [UNNAMED, *queue.options.groups]
        left = len(groups)
        self.is_sure = True

        def seen(group: str, error: object, ready: int, consumers: int) -> None:
            nonlocal left
            self.is_sure = self.is_sure and error is None
            self._seen[group] = (ready, consumers)
            left -= 1
            if not left:
                for on_done in waiting:
                    on_done(None)

        def opened(error: object) -> None:
            for group in groups:
                if error is not None:
                    seen(group, error, *self._seen.get(group, (0, 0)))
                else:
                    queue.declaration.count(group, partial(seen, group))

        queue.when_open(opened)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` after each query that finds other counts, and when the queue is gone.

        Return a function that ends the watch.
        """
        self._watchers.append(fn)
        self.changed()

        def unwatch() -> None:
            if fn in self._watchers:
                self._watchers.remove(fn)

        return unwatch

    def changed(self) -> None:
        """Query soon if there are watchers: a count has changed here."""
        self._pause_ms = LOOK_MS_MIN
        if self._watchers and not self._is_looking:
            self._is_looking = True
            self._queue.engine.host.call_later(self._pause_ms, self._count_again)

    def _count_again(self) -> None:
        if self._queue.is_closed or not self._watchers:
            self._is_looking = False
            return
        self.refresh(self._notify)

    def _notify(self, _error: CurbstoneError | None) -> None:
        queue = self._queue
        now = [self.counts(group) for group in (UNNAMED, *queue.options.groups)]
        if now != self._last_notified:
            self._last_notified = now
            self._pause_ms = LOOK_MS_MIN
            for fn in list(self._watchers):
                fn()
        else:
            self._pause_ms = min(2 * self._pause_ms, LOOK_MS_MAX)
        queue.engine.host.call_later(self._pause_ms, self._count_again)

    def close(self) -> None:
        """Notify all watchers that the queue is gone."""
        watchers, self._watchers = self._watchers, []
        for fn in watchers:
            fn()
