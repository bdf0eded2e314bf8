"""Reading as a batch: the messages in the queues when the first action runs. Later actions read the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from curbstone.spark import calls
from curbstone.spark.client import Client
from curbstone.spark.columns import Columns
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import data_loss
from curbstone.spark.options import EARLIEST, JOURNAL, LATEST, ReadOptions
from curbstone.spark.reading import Range, Task, read_journal, read_messages, split
from curbstone.spark.source_types import DataSourceReader

if TYPE_CHECKING:
    import pyarrow as pa


def queues_of(server: Client, options: ReadOptions) -> tuple[str, ...]:
    """Return the full names of the queues to read: the named ones, or those that match the pattern now."""
    return calls.queues_like(server, options.project, options.pattern) if options.pattern else options.queues


def first_queues(server: Client, options: ReadOptions) -> tuple[str, ...]:
    """Return the same for the first read. Raise PipelineError if the pattern matches no queue or a queue is missing."""
    found = options.queues
    if options.pattern:
        found = calls.some_queues_like(server, options.project, options.pattern)
    for name, places in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if unknown := sorted(set(places.of_queues) - set(found) if places else ()):
            raise PipelineError(f"option {name}: no such queue: {unknown[0]}")
    return found


class BatchReader(DataSourceReader):
    """Reads messages or the journal. It has no pushFilters, because Spark 4.3 confuses the filters of two scans."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[Range] | Sequence[Task]:
        """Freeze the ranges to read, and return them. Runs on the driver."""
        options = self._options
        server = Client(options.address)
        try:
            queues = first_queues(server, options)
            if options.mode == JOURNAL:
                return [self._journal(queue) for queue in queues]
            there = calls.offsets_of(server, dict.fromkeys(queues, 0), group=options.group)
            return split([self._range(server, queue, there.get(queue)) for queue in queues], options)
        finally:
            server.close()

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition. Runs on an executor."""
        read = read_journal if self._options.mode == JOURNAL else read_messages
        return read(partition, self._options, self._columns)

    def _journal(self, queue: str) -> Range:
        start = self._options.start.of(queue) if self._options.start else EARLIEST
        fresh = not isinstance(start, int)
        # Positions can't be divided, so there is one task per queue. Missing events before the oldest one are no loss.
        return Range(queue, "", 0 if fresh else int(start), -1, strict=not fresh and self._options.fail_on_loss)

    def _range(self, server: Client, queue: str, found: calls.Offsets | None) -> Range:
        """Return the range to read of a queue.

        Without a group and a start this reads the live messages, so messages settled meanwhile are left out.
        """
        options = self._options
        now = found or calls.offsets(server, queue, group=options.group)  # its error names what is missing
        low, high = now.first, now.next
        start = options.start.of(queue) if options.start else EARLIEST
        if options.start_ms is not None:
            low = max(low, calls.offsets(server, queue, group=options.group, timestamp_ms=options.start_ms).at)
        elif isinstance(start, int):
            if start < now.first and options.fail_on_loss and (not options.group or start < now.floor):
                why = "no longer in the queue; start later, or set failOnDataLoss=false"
                raise data_loss(queue, options.group, start, max(now.floor, now.first), why)
            low = max(low, start)
        end = options.end.of(queue) if options.end else LATEST
        if options.end_ms is not None:
            high = min(high, calls.offsets(server, queue, group=options.group, timestamp_ms=options.end_ms).at)
        elif isinstance(end, int):
            high = min(high, end)
        is_bound = isinstance(start, int) or bool(options.group)
        return Range(queue, now.epoch, low, max(low, high), strict=is_bound and options.fail_on_loss)
