"""The numbers of one queue, as they were when somebody looked last.

The broker says how many messages are ready and how many consumers there are; what is unsettled each gateway knows of
its own, and tells the others every second. How many are delayed and how many bytes a queue takes nobody can say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.errors import CurbstoneError
from curbstone.core.values import UNNAMED, Counts, Done
from curbstone.rabbit.inside import Queue

LOOK_MS_MIN = 250
LOOK_MS_MAX = 2000
"""While somebody watches: soon after something happened here, else not so often."""


class Counting:
    """See the module's docstring."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._seen: dict[str, tuple[int, int]] = {}
        """Ready messages and consumers, by group."""
        self._watchers: list[Callable[[], None]] = []
        self._pause_ms = LOOK_MS_MIN
        self._is_looking = False
        self._told: object = None
        self.is_sure = False
        """Whether RabbitMQ has answered the last look."""
        self._waiting: list[Done] = []
        """Who waits for the look that begins next."""

    def counts(self, group: str) -> Counts:
        """Return what is known."""
        queue = self._queue
        ready, _ = self._seen.get(group, (0, 0))
        consumers = sum(consumers for _, consumers in self._seen.values())
        own = sum(consumer.surplus for consumer in queue.takers) + queue.leasing.waiting
        wip = self.unsettled(group) + queue.engine.unsettled.elsewhere(queue.uid, group)
        return Counts(ready, wip, 0, 0, max(consumers - own, len(queue.takers)))

    def unsettled(self, group: str) -> int:
        """How many messages of a group are with clients of this gateway."""
        queue = self._queue
        held = sum(len(consumer.unsettled) for consumer in queue.takers if consumer.group == group)
        return held + queue.leasing.unsettled(group)

    def refresh(self, on_done: Done) -> None:
        """Look, then call back; looks that are asked for together are one."""
        self._waiting.append(on_done)
        if len(self._waiting) == 1:
            self._queue.engine.host.call_soon(self._look)

    def _look(self) -> None:
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
                    queue.opening.count(group, partial(seen, group))

        queue.when_open(opened)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """See `Queue.watch`."""
        self._watchers.append(fn)
        self.changed()

        def unwatch() -> None:
            if fn in self._watchers:
                self._watchers.remove(fn)

        return unwatch

    def changed(self) -> None:
        """Something happened here: look soon, if somebody watches."""
        self._pause_ms = LOOK_MS_MIN
        if self._watchers and not self._is_looking:
            self._is_looking = True
            self._queue.engine.host.call_later(self._pause_ms, self._look_again)

    def _look_again(self) -> None:
        if self._queue.is_closed or not self._watchers:
            self._is_looking = False
            return
        self.refresh(self._tell)

    def _tell(self, _error: CurbstoneError | None) -> None:
        queue = self._queue
        now = [self.counts(group) for group in (UNNAMED, *queue.options.groups)]
        if now != self._told:
            self._told = now
            self._pause_ms = LOOK_MS_MIN
            for fn in list(self._watchers):
                fn()
        else:
            self._pause_ms = min(2 * self._pause_ms, LOOK_MS_MAX)
        queue.engine.host.call_later(self._pause_ms, self._look_again)

    def close(self) -> None:
        """The queue is no more: all watchers are told."""
        watchers, self._watchers = self._watchers, []
        for fn in watchers:
            fn()
