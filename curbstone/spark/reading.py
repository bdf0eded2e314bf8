"""Reads a range of a queue on an executor: pages in, Arrow batches out, or an error if a part of the range is lost.

The driver freezes a range as [low, high). Messages in it that were settled, expired or deleted are no loss. A loss is
reported by the server (410), or is another queue with the same name (409).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from curbstone.spark import calls
from curbstone.spark.client import Client
from curbstone.spark.columns import Columns, names_of
from curbstone.spark.failure import PipelineError, Refused
from curbstone.spark.gaps import GIVEN_UP, RECREATED, data_loss
from curbstone.spark.options import ReadOptions
from curbstone.spark.source_types import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Range(InputPartition):
    """Seqs of a queue that one task reads, or positions of its journal. With `strict`, a loss is an error.

    With `tolerates_deletion`, a deletion of the queue or the group is not an error here, because the driver reports it.
    """

    queue: str
    epoch: str
    low: int
    high: int
    strict: bool = True
    tolerates_deletion: bool = False


@dataclass(frozen=True)
class Fetched(Range):
    """A range of the journal with its page, which the driver has already fetched."""

    page: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Task(InputPartition):
    """Ranges that one task reads in order."""

    ranges: tuple[Range, ...]


ROWS_FOR_ALL_CORES, ROWS_WORTH_A_TASK = 100_000, 30_000
"""The default number of tasks: from the first number of rows on, one task for each core; below it, one for each of the
second number of rows. Starting a task, in Java and in Python, costs as much CPU as reading 30,000 messages of 100
bytes.
"""


def split(ranges: Sequence[Range], options: ReadOptions) -> list[Task]:
    """Divide ranges into about as many tasks as wanted, in order. No task has more rows than `maxRecordsPerPartition`.

    Small ranges of many queues are joined in one task.
    """
    total = sum(one.high - one.low for one in ranges)
    least = options.partitions_min
    if least is None:
        least = options.cores if total >= ROWS_FOR_ALL_CORES else min(options.cores, total // ROWS_WORTH_A_TASK)
    wanted = max(least, -(-total // options.per_partition))
    each = min(options.per_partition, -(-total // wanted)) if wanted else 0
    tasks: list[list[Range]] = []
    room = 0
    for one in ranges:
        low = one.low
        while low < one.high:
            if not room:
                tasks.append([])
                room = each
            high = min(one.high, low + room)
            tasks[-1].append(replace(one, low=low, high=high))
            room -= high - low
            low = high
    return [Task(tuple(task)) for task in tasks]


def read_messages(task: Task, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task, a batch per page. Raise DataLoss, Refused or Unreachable."""
    if not isinstance(task, Task):
        return  # Spark passes its own partition if there is nothing to read
    server = Client(options.address)
    try:
        for part in task.ranges:
            yield from _read_range(server, part, options, columns)
    finally:
        server.close()


def _read_range(server: Client, part: Range, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    from curbstone.spark.arrow import arrow_schema, message_batch

    schema = arrow_schema(columns)
    query: dict[str, Any] = {"limit": options.fetch_rows, "max_bytes": options.fetch_bytes}
    if options.group:
        query["group"] = options.group
    if part.epoch:
        query["epoch"] = part.epoch
    names = names_of(columns)
    if "body" not in names:
        query["body"] = "false"
    if not {"headers", "content_type", "key"} & names:
        query["headers"] = "false"
    at = part.low
    while at < part.high:
        try:
            reply = calls.browse(server, part.queue, {**query, "from": at, "to": part.high})
        except Refused as refused:
            at = _after_gap(refused, part, options, at)
            continue
        following = reply.number("Next-Offset")
        if following <= at:
            raise PipelineError(f"{part.queue}: after its page from {at} the server continues at {following}")
        at = following
        batch = message_batch(reply.body, part.queue, part.epoch, schema, plain=options.plain_headers)
        if batch.num_rows:
            yield batch


def _after_gap(refused: Refused, part: Range, options: ReadOptions, at: int) -> int:
    """Return where to continue after the server reported that a part of the range is gone; or raise."""
    if refused.status == calls.NOT_FOUND and part.tolerates_deletion:
        return part.high
    if refused.status == calls.CONFLICT:
        if not part.strict:
            return part.high
        why = f"{RECREATED}; set failOnDataLoss=false to read the new one"
        raise data_loss(part.queue, options.group, at, part.high, why) from None
    if refused.status != calls.GONE:
        raise refused
    first = refused.members.get("first")
    if not isinstance(first, int) or first <= at:
        raise refused
    if part.strict:
        why = f"{_given_up(options)}; raise the queue's cap, or set failOnDataLoss=false"
        raise data_loss(part.queue, options.group, at, min(first, part.high), why) from None
    return first


def _given_up(options: ReadOptions) -> str:
    return GIVEN_UP if options.group else "no longer in the queue"


def read_journal(part: Range, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the events from position `low` up to `high`; -1 means the end of the journal when it is reached."""
    from curbstone.spark.arrow import arrow_schema, event_batch
    from curbstone.spark.frames import read_events

    schema = arrow_schema(columns)
    if isinstance(part, Fetched):
        if planned := read_events(part.page):
            yield event_batch(planned, part.queue, part.epoch, schema)
        return
    server = Client(options.address)
    at = part.low
    try:
        while part.high < 0 or at < part.high:
            query = {"from": at, "limit": options.fetch_rows, "max_bytes": options.fetch_bytes}
            try:
                reply = calls.journal(server, part.queue, query, part.epoch)
            except Refused as refused:
                at = _after_gap(refused, part, options, at)
                continue
            following = reply.number("Next-Offset")
            events = read_events(reply.body)
            if part.high >= 0:
                events = [event for event in events if event.position < part.high]
            if events:
                yield event_batch(events, part.queue, reply.headers.get("X-Curbstone-Epoch", part.epoch), schema)
            if following <= at:
                return
            at = following
    finally:
        server.close()
