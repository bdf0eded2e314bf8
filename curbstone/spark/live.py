"""The current contents of a running server as Arrow, read page by page without taking messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from curbstone.spark import calls
from curbstone.spark.arrow import TYPES, event_batch, message_batch
from curbstone.spark.client import Client, checked_name
from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.failure import PipelineError, Refused
from curbstone.spark.frames import read_events
from curbstone.spark.parts import in_project_and_queue, stored_schema

PAGE_ROWS, PAGE_BYTES = 20_000, 4 << 20


def _listed(server: Client, project: str, queues: Sequence[str]) -> list[dict[str, Any]]:
    """Return the server's list of these queues, or of all of a project. Raise PipelineError if one is missing."""
    names = [checked_name(queue, project) for queue in queues]
    projects = list(dict.fromkeys(name.project for name in names)) or [project]
    found = [
        {"project": one, **queue} for one in projects for queue in server.json("GET", f"/v2/{one}/queues")["queues"]
    ]
    if names:
        there = {(queue["project"], queue["name"]): queue for queue in found}
        for name in names:
            if name not in there:
                raise PipelineError(f"no such queue: {name}")
        found = [there[name] for name in names]
    return found


def counts(server: Client, project: str, queues: Sequence[str]) -> pa.Table:
    """Return the number of messages in these queues, or in all queues of a project. Raise PipelineError."""
    numbers = ("rdy", "wip", "delayed", "consumers", "bytes", "cap")
    columns: dict[str, list[Any]] = {name: [] for name in ("project", "queue", *numbers)}
    for one in _listed(server, project, queues):
        for name in columns:
            columns[name].append(one["name" if name == "queue" else name])
    types = [(name, pa.string() if name in ("project", "queue") else pa.int64()) for name in columns]
    return pa.table(columns, schema=pa.schema(types))


def messages(
    server: Client, project: str, queues: Sequence[str], *, plain_headers: bool = True
) -> pa.RecordBatchReader:
    """Return the messages in these queues, or in all queues of a project, with the columns of a lake."""
    names = [f"{one['project']}/{one['name']}" for one in _listed(server, project, queues)]
    schema = stored_schema(MESSAGES)
    batches = (batch for name in names for batch in _pages(server, name, schema, plain_headers))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _pages(server: Client, queue: str, schema: pa.Schema, plain_headers: bool) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a queue. Those that are settled or lost meanwhile are left out."""
    read = pa.schema([pa.field(name, TYPES[name]) for name in schema.names if name in TYPES])
    now = calls.offsets(server, queue)
    at = now.first
    while at < now.next:
        query = {"from": at, "to": now.next, "limit": PAGE_ROWS, "max_bytes": PAGE_BYTES}
        try:
            reply = calls.browse(server, queue, query)
        except Refused as refused:
            at = _after_gap(refused, at)
            continue
        at = reply.number("Next-Offset")
        batch = message_batch(reply.body, queue, now.epoch, read, plain=plain_headers)
        yield in_project_and_queue(batch).select(schema.names)


def journal(server: Client, queues: Iterable[str]) -> pa.RecordBatchReader:
    """Return the remaining events of the journals of these queues (`project/queue`), with the columns of a lake."""
    schema = stored_schema(JOURNAL)
    batches = (batch for queue in queues for batch in _events(server, queue, schema))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _events(server: Client, queue: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    read = pa.schema([pa.field(name, TYPES[name]) for name in schema.names if name in TYPES])
    at = 0
    while True:
        query = {"from": at, "limit": PAGE_ROWS, "max_bytes": PAGE_BYTES}
        try:
            reply = calls.journal(server, queue, query)
        except Refused as refused:
            at = _after_gap(refused, at)
            continue
        if events := read_events(reply.body):
            batch = event_batch(events, queue, reply.headers.get("X-Curbstone-Epoch", ""), read)
            yield in_project_and_queue(batch).select(schema.names)
        following = reply.number("Next-Offset")
        if following <= at:
            return
        at = following


def _after_gap(refused: Refused, at: int) -> int:
    """Return where to continue after the server reported that the place `at` is gone; or raise."""
    behind = refused.members.get("first")
    if refused.status != calls.GONE or not isinstance(behind, int) or behind <= at:
        raise refused
    return behind
