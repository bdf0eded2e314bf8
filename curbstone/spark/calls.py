"""The calls of the pipeline to the server, as typed functions. See openapi/openapi.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from curbstone.spark.client import Client, Reply, checked_name, queue_path
from curbstone.spark.failure import GroupInUse, NoRoom, PipelineError, Refused
from curbstone.spark.frames import BATCHES, JOURNAL

NOT_FOUND, CONFLICT, GONE, FULL = 404, 409, 410, 507
STAGED = "staged"
QUEUES_MAX = 10_000
"""The most queues that the server takes in one call."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The range of a queue.

    `first` is the first live message. No message below `next` will ever appear later. Messages below `floor` are lost.
    Messages from `after` up to `until` take `size` bytes, at most `size_max`, if the call asked for a size.
    """

    epoch: str
    first: int
    next: int
    floor: int
    at: int
    until: int
    size: int
    size_max: int


def offsets(
    server: Client,
    queue: str,
    *,
    group: str = "",
    wait_s: float = 0,
    after: int = 0,
    size_max: str = "",
    timestamp_ms: int | None = None,
) -> Offsets:
    """Request the offsets of a queue. Wait up to `wait_s` for a message at `after` or later.

    `size_max` is a number of bytes, or FIT for the server's choice for a staged transaction.
    """
    query: dict[str, Any] = {"group": group} if group else {}
    if wait_s:
        query["wait"] = f"{wait_s:g}"
    if size_max:
        query["bytes"] = size_max
    if wait_s or size_max:
        query["after"] = after
    if timestamp_ms is not None:
        query["timestamp"] = timestamp_ms
    return _offsets(server.call("GET", f"{queue_path(queue)}/offsets", query, extra_s=wait_s).json())


def offsets_of(
    server: Client, after: Mapping[str, int], *, group: str = "", wait_s: float = 0, size_max: str = ""
) -> dict[str, Offsets]:
    """Request the offsets of many queues, in one call per project.

    Missing queues, and those without the group, are left out. Wait up to `wait_s` until a queue of the project has a
    message at its `after` or later, or is missing.
    """
    body: dict[str, object] = {"group": group} if group else {}
    if size_max:
        body["bytes"] = size_max if size_max == STAGED else int(size_max)
    if wait_s:
        body["wait"] = wait_s
    found: dict[str, Offsets] = {}
    for project, names in _by_project(after):
        value = {**body, "queues": {name: after[f"{project}/{name}"] for name in names}}
        reply = server.json("POST", f"/v2/{project}/offsets", value=value, extra_s=wait_s)
        found |= {f"{project}/{name}": _offsets(one) for name, one in reply["queues"].items()}
    return found


def _by_project(queues: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each project with the names of its queues, in portions that the server accepts."""
    projects: dict[str, list[str]] = {}
    for queue in queues:
        name = checked_name(queue)
        projects.setdefault(name.project, []).append(name.queue)
    for project, names in projects.items():
        for at in range(0, len(names), QUEUES_MAX):
            yield project, names[at : at + QUEUES_MAX]


def _offsets(found: Mapping[str, Any]) -> Offsets:
    def number(name: str, default: int) -> int:
        return int(found.get(name) or default)

    next_seq = int(found["next"])
    reach = (number("until", next_seq), number("bytes", 0), number("bytes_max", 0))
    return Offsets(
        str(found["epoch"]), int(found["first"]), next_seq, number("floor", 0), number("at", next_seq), *reach
    )


@dataclass(frozen=True, slots=True)
class Group:
    """The state of a group. It has settled everything below `position`, and lost `lost` messages, all below `floor`."""

    epoch: str
    position: int
    next: int
    lost: int
    floor: int


def declare_group(server: Client, queue: str, group: str, start: object) -> Group:
    """Declare the group. A new one begins at `start`: earliest, latest, a seq, or {"timestamp": ms}."""
    return _group(server.json("PUT", _group_path(queue, group), value={"start": start}))


def group(server: Client, queue: str, name: str) -> Group:
    """Request the state of a group."""
    return _group(server.json("GET", _group_path(queue, name)))


def acks(
    server: Client, group: str, up_to: Mapping[str, tuple[int, str]], reader: str
) -> dict[str, Group | GroupInUse | Refused]:
    """Ack everything up to and including these seqs, of these epochs, for the group; one call per project.

    Return for each queue the group after the ack, or the error. By `reader`, the id of this query, the server detects
    that another query reads through the same group, or that a query is behind the group's acks (GroupInUse).
    """
    results: dict[str, Group | GroupInUse | Refused] = {}
    for project, names in _by_project(up_to):
        done = {name: up_to[f"{project}/{name}"] for name in names}
        queues = {name: {"upTo": seq, "epoch": epoch} for name, (seq, epoch) in done.items()}
        value = {"group": group, "reader": reader, "queues": queues}
        reply = server.json("POST", f"/v2/{project}/acks", value=value)
        results |= {f"{project}/{name}": _group(found) for name, found in reply["queues"].items()}
        for name, problem in reply["problems"].items():
            queue = f"{project}/{name}"
            results[queue] = _not_acked(queue, group, problem)
    return results


def _not_acked(queue: str, group: str, problem: dict[str, Any]) -> GroupInUse | Refused:
    refused = Refused(int(problem["status"]), str(problem["detail"]), problem)
    if refused.status != CONFLICT or not problem.get("other_reader"):
        return refused
    why = str(refused).removeprefix("curbstone: ")
    advice = "two queries need two groupIds; a query with an old checkpoint needs a new groupId or failOnDataLoss=false"
    acked = problem.get("acked")
    return GroupInUse(f"{queue} group={group}: {why}; {advice}", acked if isinstance(acked, int) else None)


def schema_of(client: Client, queue: str) -> object:
    """Return the queue's JSON Schema, or None if it has none or does not exist."""
    try:
        return client.json("GET", queue_path(queue))["options"]["schema"]
    except Refused as refused:
        if refused.status != NOT_FOUND:
            raise
        return None


def browse(server: Client, queue: str, query: dict[str, Any]) -> Reply:
    """Get a page of messages as frames."""
    return server.call("GET", f"{queue_path(queue)}/browse", query, accept=BATCHES)


def journal(server: Client, queue: str, query: dict[str, Any], epoch: str = "") -> Reply:
    """Get a page of the journal in its binary form. With `epoch`, refuse another queue of the same name."""
    query = {**query, "epoch": epoch} if epoch else query
    return server.call("GET", f"{queue_path(queue)}/journal", query, accept=JOURNAL)


def queues_like(server: Client, project: str, pattern: str) -> tuple[str, ...]:
    """Return the project's queues whose whole names match the pattern."""
    found = server.json("GET", f"/v2/{project}/queues")["queues"]
    names = sorted(str(queue["name"]) for queue in found)
    return tuple(f"{project}/{name}" for name in names if re.fullmatch(pattern, name))


def some_queues_like(server: Client, project: str, pattern: str) -> tuple[str, ...]:
    """Return the same, but raise PipelineError if no queue matches."""
    found = queues_like(server, project, pattern)
    if not found:
        raise PipelineError(f"no queue of project {project} matches queuePattern={pattern!r}")
    return found


def put_part(server: Client, project: str, transaction: str, part: str, frames: bytes) -> bool:
    """Stage a part. Return False if the transaction is already committed, so that nothing need be staged.

    Raise NoRoom if it exceeds the server's room for staged transactions.
    """
    path = f"{transaction_path(project, transaction)}/parts/{quote(part, safe='')}"
    try:
        server.call("PUT", path, body=frames, kind=BATCHES)
    except Refused as refused:
        if refused.status == CONFLICT and refused.members.get("committed"):
            return False
        if refused.status == CONFLICT:
            why = "another task of this write has failed, maybe for lack of room (--max-staged)"
            raise PipelineError(f"{refused}: {why}") from None
        if refused.status == FULL:
            why = f"{refused}; a write, or a micro-batch, is one transaction {transaction}, which must fit"
            raise NoRoom(f"{why}: start the server with a larger --max-staged") from None
        raise
    return True


def commit(server: Client, project: str, transaction: str, parts: Sequence[str], content: str = "") -> dict[str, Any]:
    """Publish the parts in this order, all or nothing. `repeated` in the reply marks an earlier commit of them.

    With `content`, raise Refused (CONFLICT) if the transaction was committed with other content.
    """
    value = {"parts": list(parts)} | ({"content": content} if content else {})
    return server.json("POST", f"{transaction_path(project, transaction)}/commit", value=value)


def drop(server: Client, project: str, transaction: str) -> None:
    """Drop the staged parts of a transaction."""
    server.call("DELETE", transaction_path(project, transaction))


def transaction_state(server: Client, project: str, transaction: str) -> dict[str, Any] | None:
    """Return the state of a transaction, or None if it does not exist."""
    try:
        return server.json("GET", transaction_path(project, transaction))
    except Refused as refused:
        if refused.status == NOT_FOUND:
            return None
        raise


def transaction_path(project: str, transaction: str) -> str:
    return f"/v2/{project}/transactions/{quote(transaction, safe='')}"


def project_of(queue: str) -> str:
    """Return the project in the full name of a queue."""
    return checked_name(queue).project


def _group_path(queue: str, name: str) -> str:
    return f"{queue_path(queue)}/groups/{quote(name, safe='')}"


def _group(found: dict[str, Any]) -> Group:
    try:
        return Group(
            str(found["epoch"]),
            int(found["position"]),
            int(found["next"]),
            int(found["lost"]),
            int(found["floor"] or 0),
        )
    except (KeyError, TypeError, ValueError):
        raise PipelineError("the server's reply about a group does not follow the contract") from None
