"""Queues over HTTP: list, create, inspect and delete them, and find their WebSocket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from curbstone.access.rights import Right
from curbstone.core.names import QueueName, queue_name
from curbstone.core.values import Capability
from curbstone.gateway.formats.parameters import group_of, query_of, whole_number
from curbstone.gateway.http.callbacks import all_answers, answer
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.responses import JsonResponse
from curbstone.gateway.http.scope import AnyScope, base_of
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.core.port import Queue
    from curbstone.core.positions import Backlog
    from curbstone.core.values import Peeked

T = TypeVar("T")

GROUPS_MAX = 1000
"""The most groups in a reply. There may be any number, because publishers name them."""
LIST_MAX = 100_000
"""The most queues, or projects, in a reply."""


class Page(NamedTuple):
    """The requested part of a list that is ordered by name."""

    prefix: str
    after: str
    limit: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Page:
        """Return the page that a query requests; raise BadRequest."""
        limit = whole_number("limit", query.get("limit", LIST_MAX), 1, LIST_MAX)
        return cls(query.get("prefix", ""), query.get("after", ""), limit)

    def cut(self, items: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], dict[str, str]]:
        """Return the items of this page out of `items`, which are in order, and the member `next` if more follow."""
        found = [item for item in items if name(item).startswith(self.prefix) and name(item) > self.after]
        return found[: self.limit], {"next": name(found[self.limit - 1])} if len(found) > self.limit else {}


def name_in(scope: AnyScope) -> QueueName:
    """Return the name of the queue in a request's path; raise BadRequest."""
    path = scope["path_params"]
    return queue_name(path["queue"], path["project"])


async def refreshed(access: AuthorizedBroker, queues: Sequence[Queue]) -> None:
    """On a cluster, where other servers also change queues, update the counts of these queues."""
    if access.shares_queues and queues:
        await all_answers([queue.refresh for queue in queues])


def info_of(queue: Queue, group: str = "", *, has_figures: bool = True) -> dict[str, object]:
    """Return a queue as JSON. Without `has_figures`, its bytes and delayed messages are left out."""
    counts = queue.counts(group)
    info: dict[str, object] = {
        "project": queue.name.project,
        "name": queue.name.queue,
        "rdy": counts.rdy,
        "wip": counts.wip,
        "delayed": counts.delayed,
        "bytes": counts.bytes,
        "cap": queue.options.cap,
        "consumers": counts.consumers,
        "options": queue.options.as_json(),
        "groups": {backlog.group: _json(backlog) for backlog in queue.reading.backlogs()[:GROUPS_MAX]},
    }
    if by_priority := queue.by_priority(group):
        info["by_priority"] = priorities_json(by_priority)
    if counts.held_back:
        info |= {"held_back": counts.held_back, "limited_by": counts.limited_by}
    if queue.stats.duplicates:
        info["duplicates"] = queue.stats.duplicates
    if queue.stats.replaced:
        info["replaced"] = queue.stats.replaced
    if batches := len(queue.batches()):
        info["batches"] = batches
    if not has_figures:
        del info["delayed"], info["bytes"]
    if queue.damaged:
        info["damaged"] = list(queue.damaged)
    return info


def priorities_json(counts: Mapping[int, int]) -> dict[str, int]:
    """Return counts by priority as JSON, the highest priority first."""
    return {str(priority): counts[priority] for priority in sorted(counts, reverse=True)}


def _json(backlog: Backlog) -> dict[str, object]:
    fields = backlog._asdict()
    del fields["group"]
    return fields


class Queues:
    """The handlers of `/v2/{project}/queues` and `/v2/{project}/queues/{queue}`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def projects(self, request: Request) -> Response:
        """GET /v2: the projects that have queues on which the caller has a right, by name; all, or a page."""
        page = Page.of(query_of(request))
        counts = Counter(queue.name.project for queue in access_of(request).queues())
        names, following = page.cut(sorted(counts), str)
        projects = [{"project": name, "queues": counts[name]} for name in names]
        return JsonResponse({"projects": projects} | following)

    async def list(self, request: Request) -> Response:
        """GET: the queues of a project that the caller may see, by name; all, or a page."""
        project = queue_name("any", request.path_params["project"]).project
        page = Page.of(query_of(request))
        found = [queue for queue in access_of(request).queues_with(Right.PEEK) if queue.name.project == project]
        queues, following = page.cut(sorted(found, key=_by_name), _by_name)
        await refreshed(access_of(request), queues)
        return JsonResponse({"queues": [_info(request, queue) for queue in queues]} | following)

    async def put(self, request: Request) -> Response:
        """PUT: create the queue if it does not exist, and set the options in the body."""
        name = name_in(request)
        access_of(request).check(Right.MANAGE, name)
        changes = await read_object(request, request.receive, self._settings.json_bytes_max)
        for option, value in changes.items():
            if isinstance(value, float) and value.is_integer():
                changes[option] = int(value)  # JSON does not distinguish 5.0 from 5
        await answer(lambda done: access_of(request).declare(name, changes, done))
        return Response(status_code=201)

    async def get(self, request: Request) -> Response:
        """GET: the queue's counts, options and bindings."""
        queue = access_of(request).queue(name_in(request), Right.PEEK)
        group = group_of(query_of(request))
        await refreshed(access_of(request), [queue])
        oldest: list[Peeked] = []
        if Capability.LOOKING in access_of(request).capabilities:
            (oldest,) = await answer(partial(queue.peek, 1, group=group))
        info = _info(request, queue, group)
        bindings = access_of(request).bindings(queue.name)
        info["bindings"] = sorted(bindings)
        if filters := {event: text for event, text in sorted(bindings.items()) if text}:
            info["filters"] = filters
        if oldest:
            message = oldest[0].message
            info["oldest"] = {"id": queue.message_id(message.seq), "timestamp": message.timestamp_ms}
        return JsonResponse(info)

    async def delete(self, request: Request) -> Response:
        """DELETE: the queue and its messages; the same reply if there is none."""
        name = name_in(request)
        await answer(lambda done: access_of(request).delete(name, done))
        return Response(status_code=204)

    async def options(self, request: Request) -> Response:
        """OPTIONS: the URL of the queue's WebSocket, and which optional parts the engine has."""
        name = access_of(request).find(name_in(request)).name
        scheme = "wss" if request["scheme"] == "https" else "ws"
        host = request.headers.get("host") or _address(request)
        location = f"{scheme}://{host}{base_of(request)}/v2/{name.project}/queues/{name.queue}"
        headers = {"location": location, "allow": "PUT, GET, HEAD, DELETE, OPTIONS"}
        return JsonResponse({"engine": engine_json(access_of(request))}, headers=headers)


def _info(request: Request, queue: Queue, group: str = "") -> dict[str, object]:
    return info_of(queue, group, has_figures=Capability.FIGURES in access_of(request).capabilities)


def engine_json(access: AuthorizedBroker) -> dict[str, object]:
    """Return the engine's name, and which optional parts it has."""
    name, version, nodes, priority = access.engine
    members: dict[str, object] = {"name": name, "priority": priority}
    if version:
        members["version"] = version
    if nodes:
        members["nodes"] = list(nodes)
    return {**members, "capabilities": sorted(capability.value for capability in access.capabilities)}


def _by_name(queue: Queue) -> str:
    return queue.name.queue


def _address(request: Request) -> str:
    host, port = request["server"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
