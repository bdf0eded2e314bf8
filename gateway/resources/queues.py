"""Queues over HTTP: list, make, look at, delete, and where their WebSocket is."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from curbstone.access.rights import Right
from curbstone.core.names import QueueName, queue_name
from curbstone.core.values import Capability
from curbstone.gateway.formats.parameters import group_of, query_of, whole_number
from curbstone.gateway.http.answers import all_answers, answer
from curbstone.gateway.http.json_body import read_object
from curbstone.gateway.http.login import access_of
from curbstone.gateway.http.reply import reply, reply_json
from curbstone.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.core.port import Queue
    from curbstone.core.positions import Backlog
    from curbstone.core.values import Peeked

GROUPS_MAX = 1000
"""Who publishes names groups, so there may be any number."""
LIST_MAX = 100_000
"""Queues of one reply."""


def name_in(scope: Scope) -> QueueName:
    """Return the queue a request's path names; raise BadRequest."""
    path = scope["path_params"]
    return queue_name(path["queue"], path["project"])


async def refreshed(access: Access, queues: Sequence[Queue]) -> None:
    """See to it that the counts of these queues are what is so now; where others change them, they have to be asked."""
    if access.shares_queues and queues:
        await all_answers([queue.refresh for queue in queues])


def info_of(queue: Queue, group: str = "", *, has_figures: bool = True) -> dict[str, object]:
    """Return what is told about a queue; without figures not how many are delayed, nor its bytes."""
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
    if not has_figures:
        del info["delayed"], info["bytes"]
    if queue.damaged:
        info["damaged"] = list(queue.damaged)
    return info


def _json(backlog: Backlog) -> dict[str, object]:
    fields = backlog._asdict()
    del fields["group"]
    return fields


class Queues:
    """The handlers of `/v2/{project}/queues` and `/v2/{project}/queues/{queue}`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    async def projects(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET /v2: the projects that have queues which one has a right on, by name."""
        counts = Counter(queue.name.project for queue in access_of(scope).queues())
        projects = [{"project": name, "queues": counts[name]} for name in sorted(counts)]
        await reply_json(send, {"projects": projects})

    async def list(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: those of a project that one may look at, by name; all, or a page of those that begin like `prefix`."""
        project = queue_name("any", scope["path_params"]["project"]).project
        query = query_of(scope)
        limit = whole_number("limit", query.get("limit", LIST_MAX), 1, LIST_MAX)
        prefix, after = query.get("prefix", ""), query.get("after", "")
        found = [queue for queue in access_of(scope).queues_with(Right.PEEK) if queue.name.project == project]
        queues = sorted([each for each in found if each.name.queue.startswith(prefix)], key=_by_name)
        if after:
            queues = queues[bisect_right(queues, after, key=_by_name) :]
        await refreshed(access_of(scope), queues[:limit])
        listed: dict[str, object] = {"queues": [_info(scope, queue) for queue in queues[:limit]]}
        if len(queues) > limit:
            listed["next"] = queues[limit - 1].name.queue
        await reply_json(send, listed)

    async def put(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PUT: make the queue if there is none, set the options in the body."""
        name = name_in(scope)
        access_of(scope).check(Right.MANAGE, name)
        changes = await read_object(scope, receive, self._settings.json_bytes_max)
        for option, value in changes.items():
            if isinstance(value, float) and value.is_integer():
                changes[option] = int(value)  # JSON has one kind of number
        await answer(lambda done: access_of(scope).declare(name, changes, done))
        await reply(send, 201)

    async def get(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """GET: what is told about the queue."""
        queue = access_of(scope).queue(name_in(scope), Right.PEEK)
        group = group_of(query_of(scope))
        await refreshed(access_of(scope), [queue])
        oldest: list[Peeked] = []
        if Capability.LOOKING in access_of(scope).capabilities:
            (oldest,) = await answer(partial(queue.peek, 1, group=group))
        info = _info(scope, queue, group)
        info["bindings"] = sorted(access_of(scope).bindings(queue.name))
        if oldest:
            message = oldest[0].message
            info["oldest"] = {"id": queue.message_id(message.seq), "timestamp": message.timestamp_ms}
        await reply_json(send, info)

    async def delete(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """DELETE: the queue and its messages; the same reply if there is none."""
        name = name_in(scope)
        await answer(lambda done: access_of(scope).delete(name, done))
        await reply(send, 204)

    async def options(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """OPTIONS: where the WebSocket is, and what the engine can do of what it may lack."""
        name = access_of(scope).find(name_in(scope)).name
        scheme = "wss" if scope["scheme"] == "https" else "ws"
        host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "")
        location = f"{scheme}://{host or _address(scope)}/v2/{name.project}/queues/{name.queue}"
        allow = (b"allow", b"PUT, GET, HEAD, DELETE, OPTIONS")
        body = {"engine": engine_json(access_of(scope))}
        await reply_json(send, body, 200, [(b"location", location.encode("latin-1")), allow])


def _info(scope: Scope, queue: Queue, group: str = "") -> dict[str, object]:
    return info_of(queue, group, has_figures=Capability.FIGURES in access_of(scope).capabilities)


def engine_json(access: Access) -> dict[str, object]:
    """Return what the engine is, and which parts it has of those an engine may lack."""
    name, version, nodes = access.engine
    told: dict[str, object] = {"name": name}
    if version:
        told["version"] = version
    if nodes:
        told["nodes"] = list(nodes)
    return {**told, "capabilities": sorted(capability.value for capability in access.capabilities)}


def _by_name(queue: Queue) -> str:
    return queue.name.queue


def _address(scope: Scope) -> str:
    host, port = scope["server"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
