"""The handler of `/metrics`: figures for Prometheus, which `exposition` encodes.

The number of queues with figures of their own is bounded. The totals count all queues, including deleted ones.
"""

from __future__ import annotations

from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import matches
from curbstone.core.names import QueueName
from curbstone.gateway.http.callbacks import OneAtATime
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import FRESH
from curbstone.gateway.resources.metrics.figures import Figures

QUEUES_MAX = 1000
"""The most queues that have figures of their own: the first ones by name."""
GROUPS_MAX = 1000
"""The most named groups with figures, of all queues together. Publishers may name any number of groups."""


class Metrics:
    def __init__(self, figures: Figures, queues: tuple[str, ...]) -> None:
        """`queues` are patterns of `project/queue`: only queues that match one have figures of their own."""
        self._figures = figures
        self._writing = OneAtATime()
        self._queues = queues

    async def get(self, request: Request) -> Response:
        """GET /metrics: read the figures here, and encode them in a thread: with many queues this takes a while.

        The thread gives the interpreter's lock to the event loop whenever that wants it; several threads would not.
        """
        accept = request.headers.get("accept", "")
        access = access_of(request)
        await self._figures.refresh(access)
        now = await self._figures.snapshot(access)
        shown = list(islice((queue for queue in now.queues if self._is_shown(queue.name)), QUEUES_MAX))
        groups = []
        async for backlog in self._figures.backlogs(access, {queue.name for queue in shown}):
            groups.append(backlog)
            if len(groups) == GROUPS_MAX:
                break

        def write() -> tuple[bytes, str]:
            # Imported here, because prometheus-client is needed only for /metrics.
            from curbstone.gateway.resources.metrics.exposition import encode_metrics

            return encode_metrics(now, shown, groups, accept)

        body, content_type = await self._writing.run(write)
        return Response(body, headers={"content-type": content_type, **FRESH})

    def _is_shown(self, name: QueueName) -> bool:
        return any([matches(pattern, str(name)) for pattern in self._queues])
