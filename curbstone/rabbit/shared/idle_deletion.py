"""Deletes queues that no client of any gateway has consumed from for the time in their option `unused`.

Every second each gateway sends the others the list of these queues that its clients use. A gateway that has noticed no
use for that time queries RabbitMQ for consumers, including those of other programs, and deletes the queue if it has
none. The time begins anew when a gateway starts. A queue that is deleted when its last consumer leaves is kept for a
minute until its first consumer subscribes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.values import UNNAMED

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine
    from curbstone.rabbit.queue import Queue

SEND_EVERY_MS = 1000
NEWS_MS = 3 * SEND_EVERY_MS
"""How old the reports of other gateways may be."""
FIRST_MS = 60_000

logger = logging.getLogger("curbstone.rabbit")


class _Use:
    """The known use of one queue."""

    __slots__ = ("attempts", "delivered", "is_asking", "last_ms", "was_used")

    def __init__(self, now_ms: int) -> None:
        self.last_ms = now_ms
        self.attempts = 0
        self.delivered = 0
        self.was_used = False
        self.is_asking = False

    def seen(self, now_ms: int) -> None:
        """Note that the queue is used."""
        self.last_ms = now_ms
        self.was_used = True


class IdleDeletion:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._uses: dict[str, _Use] = {}
        """The use of the queues that have the option, by uid."""

    def start(self) -> None:
        """Begin to check every second, until the server stops."""
        self._engine.host.call_later(SEND_EVERY_MS, self._check)

    def receive(self, uids: list[str]) -> None:
        """Note that clients of another gateway use these queues."""
        now_ms = self._engine.host.now_ms()
        for uid in uids:
            if uid in self._uses:
                self._uses[uid].last_ms = now_ms

    def _check(self) -> None:
        if self._engine.is_stopping:
            return
        now_ms = self._engine.host.now_ms()
        watched = [queue for queue in self._engine.queues() if queue.options.unused is not None]
        self._uses = {queue.uid: self._uses.get(queue.uid) or _Use(now_ms) for queue in watched}
        used = [queue.uid for queue in watched if self._is_used(queue, now_ms)]
        if used:
            self._engine.rpc.broadcast({"do": "used", "uids": used})
        for queue in watched:
            if self._is_due(queue, now_ms):
                self._ask(queue)
        self._engine.host.call_later(SEND_EVERY_MS, self._check)

    def _is_used(self, queue: Queue, now_ms: int) -> bool:
        """Return whether clients of this gateway have used the queue since the last check."""
        use = self._uses[queue.uid]
        attempts, delivered = queue.leasing.attempts, queue.stats.delivered
        was_served, was_polled = delivered != use.delivered, attempts != use.attempts
        use.attempts, use.delivered = attempts, delivered
        if was_served or queue.consumers or queue.leasing.is_used:
            use.seen(now_ms)
        elif was_polled:
            use.last_ms = now_ms
        return use.last_ms == now_ms

    def _is_due(self, queue: Queue, now_ms: int) -> bool:
        use, unused = self._uses[queue.uid], queue.options.unused
        assert unused is not None
        wait_ms = unused * 1000 if unused or use.was_used else FIRST_MS
        return not use.is_asking and now_ms - use.last_ms >= wait_ms + NEWS_MS

    def _ask(self, queue: Queue) -> None:
        """Delete the queue, unless RabbitMQ reports consumers or another gateway reports leases."""
        use = self._uses[queue.uid]
        use.is_asking = True

        def counted(_error: CurbstoneError | None) -> None:
            use.is_asking = False
            counts = [queue.counts(group) for group in (UNNAMED, *queue.options.groups)]
            now_ms = self._engine.host.now_ms()
            if any(each.consumers or each.wip for each in counts):
                use.seen(now_ms)
            elif queue.counting.is_sure and not queue.is_closed and self._is_due(queue, now_ms):
                logger.info("deleted queue %s: it was unused for %g s", queue.name, queue.options.unused)
                use.is_asking = True
                self._engine.delete(queue.name, deleted)

        def deleted(result: bool | CurbstoneError) -> None:
            use.is_asking = False
            if isinstance(result, CurbstoneError):
                logger.warning("queue %s is unused, and can't be deleted: %s", queue.name, result)

        queue.refresh(counted)
