"""Figures as JSON, for consoles and programs: a page of the queues in any order, and the whole server."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from starlette.requests import Request
from starlette.responses import Response

from curbstone.core.errors import BadRequest
from curbstone.gateway.formats.parameters import query_of, whole_number
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import FRESH, JsonResponse
from curbstone.gateway.resources.metrics.figures import (
    BUILD,
    BY_PROTOCOL,
    PYTHON,
    QUEUE_GAUGES,
    RATES,
    TOTALS,
    VERSION,
    Figures,
    HistogramFigures,
    QueueFigures,
    Snapshot,
)
from curbstone.gateway.resources.queues.queues import priorities_json

LIMIT = 1000
LIMIT_MAX = 10_000
OFFSET_MAX = 1 << 31

_COUNTERS = {name: field for name, (field, _) in TOTALS.items()}
ORDERS = ("name", *QUEUE_GAUGES, *_COUNTERS, *RATES, "messages_per_second")


class Statistics:
    """The handler of `/v2/stats`."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    async def get(self, request: Request) -> Response:
        """GET: all figures of /metrics, for the requested queues."""
        query = query_of(request)
        order = query.get("order", "name")
        if order not in ORDERS:
            raise BadRequest(f"bad order {order[:80]!r}: one of {', '.join(ORDERS)}")
        limit = whole_number("limit", query.get("limit", LIMIT), 0, LIMIT_MAX)
        offset = whole_number("offset", query.get("offset", 0), 0, OFFSET_MAX)
        await self._figures.refresh(access_of(request))
        now = await self._figures.snapshot(access_of(request))
        chosen = _chosen(now.queues, query)
        if order != "name":
            # The largest first; queues with the same value stay in the order of their names.
            chosen.sort(key=lambda queue: _value(queue, order), reverse=True)
        page = [_queue(queue) for queue in chosen[offset : offset + limit]]
        members = {**(_server(now) if now.is_whole else {}), "queues_chosen": len(chosen), "queues": page}
        return JsonResponse(members, 200, FRESH)


def _chosen(queues: list[QueueFigures], query: Mapping[str, str]) -> list[QueueFigures]:
    project, part = query.get("project"), query.get("search", "").lower()
    return [
        queue
        for queue in queues
        if (project is None or queue.name.project == project) and (not part or part in str(queue.name).lower())
    ]


def _value(queue: QueueFigures, order: str) -> float:
    if order in _COUNTERS:
        return queue.counters[_COUNTERS[order]]
    return queue.gauges[order] if order in queue.gauges else queue.rates[order]


def _queue(queue: QueueFigures) -> dict[str, object]:
    counters = {name: queue.counters[field] for name, field in _COUNTERS.items()}
    project, name = queue.name
    now: dict[str, object] = {
        "seconds_to_full": queue.to_full_s,
        "messages_refused_last_minute": queue.refused_last_minute,
    }
    if queue.by_priority:
        now["by_priority"] = priorities_json(queue.by_priority)
    if held_back := max(queue.held_back.values(), default=0):
        now["held_back"] = held_back
    return {"project": project, "queue": name, **queue.gauges, **now, **counters, **queue.rates}


def _server(now: Snapshot) -> dict[str, object]:
    commits = now.commits
    return {
        "version": VERSION,
        "python": PYTHON,
        "build": BUILD,
        "sync": now.sync,
        "is_healthy": now.is_healthy,
        "queues_count": len(now.queues),
        "staged_transactions": now.staged,
        "staged_bytes": now.staged_bytes,
        "totals": {**now.held, **{name: now.totals[field] for name, field in _COUNTERS.items()}},
        "protocols": {
            protocol: {name: numbers[field] for name, (field, _) in BY_PROTOCOL.items()}
            for protocol, numbers in now.protocols.items()
        },
        "connections": now.connections,
        "connections_refused": now.refused_connections,
        "buffered": {
            "bytes": now.buffered.bytes,
            "limit_bytes": now.buffered.bytes_max,
            "users_held": now.buffered.users_held,
            "connections_ended": now.buffered.ended,
        },
        "refusals": now.refusals,
        "held_back": now.held_back,
        "commits": {
            "failed": commits.failed,
            "syncs": commits.syncs,
            "redo_kept_bytes": commits.redo_bytes_kept,
            "journal_damaged": commits.journal_damage,
            "seconds": _histogram(commits.took_us, 1_000_000),
            "messages": _histogram(commits.messages, 1),
            "sync_seconds": _histogram(commits.sync_us, 1_000_000) if commits.sync_us else None,
        },
    }


def _histogram(figures: HistogramFigures, unit: float) -> dict[str, object]:
    """Return, for each bound, how many values are at most that bound; the bound null covers all."""
    bounds = [*(bound / unit for bound in figures.bounds), None]
    return {"sum": figures.sum / unit, "buckets": list(zip(bounds, accumulate(figures.counts), strict=True))}
