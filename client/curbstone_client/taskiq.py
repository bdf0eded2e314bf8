"""taskiq on Curbstone: `broker = CurbstoneBroker("http://localhost:8080", project="shop")`.

The server delays a task by its label `delay` (seconds). Tasks with a higher label `priority` (0 to 9) are first.
A task is acked when taskiq decides (`--ack-type`). The unacked tasks of a crashed worker are redelivered.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from curbstone_client.aio import Client
from curbstone_client.aio_messages import Message
from curbstone_client.consuming import PREFETCH
from curbstone_client.errors import Stale

log = logging.getLogger("curbstone_client")


class CurbstoneBroker(AsyncBroker):
    """A broker that keeps tasks in one queue of Curbstone."""

    def __init__(
        self, url: str | None = None, *, queue: str = "taskiq", prefetch: int = PREFETCH, **settings: Any
    ) -> None:
        """`settings` are those of `curbstone_client.Client`. `startup` connects."""
        super().__init__()
        self.client = Client(url, **settings)
        self._queue = queue
        self._prefetch = prefetch

    async def startup(self) -> None:
        """Connect."""
        await super().startup()
        await self.client.connect()

    async def shutdown(self) -> None:
        """Wait for outstanding confirms and acks, and disconnect."""
        await super().shutdown()
        await self.client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; it is on disk when this returns."""
        delay = float(message.labels.get("delay", 0))
        priority = message.labels.get("priority")
        queue = self.client.queue(self._queue)
        await queue.publish(message.message, delay=delay, priority=None if priority is None else int(priority))

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield the tasks in the order they are delivered."""
        async with self.client.queue(self._queue).consume(self._prefetch) as messages:
            async for message in messages:
                yield AckableMessage(data=message.body, ack=partial(_ack, message))


async def _ack(message: Message) -> None:
    try:
        await message.ack()
    except Stale:
        log.info("the connection was lost while %r was processed; it is redelivered", message)
