"""The history of the charts as JSON: figures of the server, or of some queues, over the last hour or day."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, NotSupported
from curbstone.core.host import Host
from curbstone.core.names import parse_queue_name
from curbstone.gateway.formats.parameters import POSITION_MAX, query_of, whole_number
from curbstone.gateway.http.callbacks import answer, in_thread
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.resource import Resource
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.resources.metrics.chart_file import DAY, HOUR, SERVER, Ring, TimeSeries
from curbstone.gateway.resources.metrics.recorder import Recorder

SPANS = {"hour": HOUR, "day": DAY}
VALUES_MAX = 36_000
"""The most steps of all queues together in one reply: 100 queues for an hour, 25 for a day."""


class StatsHistory:
    """The handler of `/v2/stats/history`."""

    def __init__(self, recorder: Recorder | None, host: Host) -> None:
        """`recorder` is None on an engine that keeps no history."""
        self._recorder = recorder
        self._host = host

    async def get(self, request: Request) -> Response:
        """GET: the figures of the server or, with `queue`, those of queues."""
        query, access = query_of(request), access_of(request)
        ring = SPANS.get(query.get("span", "hour"))
        if ring is None:
            raise BadRequest(f"bad span {query['span'][:80]!r}: {' or '.join(SPANS)}")
        times = self._times(ring, query)
        members: dict[str, object] = {}
        if "queue" not in query:
            if access.identity.on_server() & Right.METRICS:
                (members["server"],) = await self._read(ring, times, [SERVER])
        else:
            names = [parse_queue_name(name, access.home) for name in dict.fromkeys(query["queue"].split(","))]
            if len(names) * len(times) > VALUES_MAX:
                raise BadRequest(
                    f"bad queue: {len(names)} queues with {len(times)} steps each; at most {VALUES_MAX} steps in all"
                )
            queues = [access.queue(name, Right.PEEK) for name in names]
            series = await self._read(ring, times, [queue.uid for queue in queues])
            members["queues"] = [
                {"project": queue.name.project, "queue": queue.name.queue, **each}
                for queue, each in zip(queues, series, strict=True)
            ]
        body = {"step": ring.step_s, "from": 1000 * times.start, **members}
        return await in_thread(lambda: JsonResponse(body, 200, FRESH))

    def _times(self, ring: Ring, query: Mapping[str, str]) -> range:
        """Return the times of the steps from `since` on, at most a whole ring of them."""
        last_s = ring.last(self._host.wall_ms() / 1000)
        first_s = last_s - (ring.rows - 1) * ring.step_s
        since_s = -(-whole_number("since", query.get("since", 0), 0, POSITION_MAX) // 1000)
        start_s = min(max(first_s, -(-since_s // ring.step_s) * ring.step_s), last_s)
        return range(start_s, last_s + 1, ring.step_s)

    async def _read(self, ring: Ring, times: range, uids: list[str]) -> list[TimeSeries]:
        if self._recorder is None:
            raise NotSupported("The history of the charts needs the local engine.")
        _, found = await answer(partial(self._recorder.read, ring, times, uids))
        series: list[TimeSeries] = found
        return series


def history_routes(recorder: Recorder | None, host: Host) -> list[Route]:
    """Return the route of the history."""
    return [Route("/v2/stats/history", Resource(GET=StatsHistory(recorder, host).get))]
