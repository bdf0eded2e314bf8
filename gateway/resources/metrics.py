"""The handler of `/metrics`: figures for Prometheus, which `exposition` encodes.

The number of queues with figures of their own is bounded. The totals count all queues, including deleted ones.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from curbstone.gateway.http.answers import OneAtATime
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.response import FRESH
from curbstone.gateway.resources.figures import Figures

QUEUES_MAX = 1000
"""The most queues that have figures of their own: the first ones by name."""
GROUPS_MAX = 1000
"""The most named groups with figures, of all queues together. Publishers may name any number."""


class Metrics:
    """Reads the figures and encodes them; see the module's docstring."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._writing = OneAtATime()

    async def get(self, request: Request) -> Response:
        """GET /metrics: read the figures here, and encode them in a thread: with many queues this takes a while.

        The thread gives the interpreter's lock to the event loop whenever that wants it; several threads would not.
        """
        accept = request.headers.get("accept", "")
        access = access_of(request)
        await self._figures.refresh(access)
        groups = []
        async for backlog in self._figures.backlogs(access, QUEUES_MAX):
            groups.append(backlog)
            if len(groups) == GROUPS_MAX:
                break
        now = await self._figures.look(access)

        def write() -> tuple[bytes, str]:
            # Imported here, because prometheus-client is needed only when somebody asks for /metrics.
            from curbstone.gateway.resources.exposition import written

            return written(now, groups, QUEUES_MAX, accept)

        body, content_type = await self._writing.run(write)
        return Response(body, headers={"content-type": content_type, **FRESH})
