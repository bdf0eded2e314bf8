"""Reading as a stream: exactly once, by the checkpoint of the query; the group's ack only frees the log.

An offset is `{queue: {"next": seq, "epoch": …, "floor": seq, "lost": n}}`, `next` being the first seq of the next
batch. What Spark promises, and what that makes of this file (Spark 4.3):

- `latestOffset(start)` comes after every batch, also when there is nothing new and after a restart, and `start` is
  then in the commit log. So that is where everything below `start` is acked; `commit` alone would leave the tail.
- `initialOffset` is called twice on a new query and its answer is kept nowhere: the group keeps it, on the server.
- `stop` says nothing about the query's end: nothing is acked or deleted there.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from curbstone.spark import calls
from curbstone.spark.batch import queues_of
from curbstone.spark.columns import Columns
from curbstone.spark.failure import PipelineError, TwoReaders
from curbstone.spark.options import EARLIEST, GROUP, ReadOptions
from curbstone.spark.reading import Range, data_loss, read_messages, split
from curbstone.spark.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, dict[str, Any]]
Ends = dict[str, calls.Offsets]

SHORT_WAIT_S = 0.1
"""Of one of several queues, before the others are asked again."""
PATTERN_AGE_S = 5.0

log = logging.getLogger("curbstone.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text. One object lives as long as the query; copies of it run `read` on executors."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._server = Server(options.address)
        self._reader = uuid.uuid4().hex
        self._initial: Offset | None = None
        self._target: dict[str, int] | None = None
        self._seen: Offset | None = None
        self._acked: dict[str, tuple[str, int]] = {}
        self._queues: tuple[str, ...] = ()
        self._queues_at = 0.0
        self._turn = 0

    # --- what Spark calls on the driver

    def initialOffset(self) -> Offset:
        if self._initial is None:
            self._initial = {queue: self._begin(queue) for queue in self._names()}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        # Of a new query the group is declared later, by initialOffset; what `next` is does not depend on it.
        self._target = {queue: calls.offsets(self._server, queue).next for queue in self._names()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        self._ack(start)
        start = self._joined(start)
        ends = self._news(start) if self._target is None else {queue: self._ask(queue) for queue in start}
        begun = {queue: self._checked(queue, start[queue], ends[queue]) for queue in start}
        self._seen = {queue: {**begun[queue], "next": max(begun[queue]["next"], ends[queue].next)} for queue in begun}
        rows = {queue: max(0, self._until(queue, ends[queue]) - begun[queue]["next"]) for queue in begun}
        if isinstance(limit, ReadMaxRows):
            rows = shares(rows, limit.max_rows)
        latest = {queue: {**begun[queue], "next": begun[queue]["next"] + rows[queue]} for queue in begun}
        return start if latest == start else latest

    def reportLatestOffset(self) -> Offset | None:
        return self._seen

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        ranges = []
        for queue, until in end.items():
            since = start.get(queue, until)
            low = since["next"] if since["epoch"] == until["epoch"] else 0
            strict = self._options.fail_on_loss
            if not strict:
                low = max(low, until.get("floor", 0))
            if low < until["next"]:
                ranges.append(Range(queue, until["epoch"], low, until["next"], strict=strict))
        return split(ranges, self._options)

    def commit(self, end: Offset) -> None:
        self._ack(end)

    # --- what it calls on executors

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        return read_messages(partition, self._options, self._columns)

    # --- the start

    def _begin(self, queue: str) -> dict[str, Any]:
        """Return where a query starts that has no checkpoint; a group that exists goes on where it is."""
        options = self._options
        place = options.start.of(queue) if options.start else GROUP
        if not options.group:
            now = calls.offsets(self._server, queue, timestamp_ms=options.start_ms)
            first = now.at if options.start_ms is not None else now.first
            if isinstance(place, int):
                if place < now.first and options.fail_on_loss:
                    why = "no longer in the queue; start later, or set failOnDataLoss=false"
                    raise data_loss(queue, "", place, now.first, why)
                first = max(place, now.first)
            return {"next": first, "epoch": now.epoch, "floor": 0, "lost": 0}
        start: object = EARLIEST if place == GROUP else place
        if options.start_ms is not None:
            start = {"timestamp": options.start_ms}
        found = calls.declare_group(self._server, queue, options.group, start)
        return {"next": found.position, "epoch": found.epoch, "floor": found.floor, "lost": found.lost}

    def _names(self) -> tuple[str, ...]:
        """Return the queues, asking again from time to time where they are given by a pattern."""
        if not self._queues or (self._options.pattern and time.monotonic() - self._queues_at > PATTERN_AGE_S):
            self._queues = queues_of(self._server, self._options)
            self._queues_at = time.monotonic()
        return self._queues

    def _joined(self, start: Offset) -> Offset:
        """Return `start` with the queues that are new; one that is no longer asked for is left out."""
        names = self._names() if self._target is None else tuple(self._target)
        if set(names) == set(start):
            return start
        return {queue: start[queue] if queue in start else self._begin(queue) for queue in names}

    # --- the end

    def _ask(self, queue: str, *, wait_s: float = 0, after: int = 0) -> calls.Offsets:
        return calls.offsets(self._server, queue, group=self._options.group, wait_s=wait_s, after=after)

    def _news(self, start: Offset) -> Ends:
        """Return where the queues stand; waits up to `pollWait` for something new, so that Spark does not spin."""
        wait_s = self._options.poll_wait_s
        if len(start) == 1:
            return {queue: self._ask(queue, wait_s=wait_s, after=at["next"]) for queue, at in start.items()}
        give_up = time.monotonic() + wait_s
        ends = {queue: self._ask(queue) for queue in start}
        while all(ends[queue].next <= start[queue]["next"] for queue in start) and time.monotonic() < give_up:
            self._turn += 1
            turn = list(start)[self._turn % len(start)]
            ends = {
                queue: self._ask(queue, wait_s=SHORT_WAIT_S if queue == turn else 0, after=start[queue]["next"])
                for queue in start
            }
        return ends

    def _until(self, queue: str, end: calls.Offsets) -> int:
        return end.next if self._target is None else min(end.next, self._target.get(queue, end.next))

    def _checked(self, queue: str, start: dict[str, Any], end: calls.Offsets) -> dict[str, Any]:
        """Return where reading goes on: at `start`, or behind what was lost; raise DataLoss where that is an error."""
        options = self._options
        if end.epoch != start["epoch"]:
            if options.fail_on_loss:
                why = "the queue was deleted and made anew; set failOnDataLoss=false to read the new one"
                raise data_loss(queue, options.group, start["next"], start["next"], why)
            log.warning("curbstone: %s was deleted and made anew; reading the new one from its beginning", queue)
            return self._begin(queue) if options.group else {**start, "next": end.first, "epoch": end.epoch}
        if not options.group:
            if start["next"] >= end.first or not options.fail_on_loss:
                return {**start, "next": max(start["next"], end.first)}
            why = "settled by consumers, or expired; a groupId keeps them, failOnDataLoss=false leaves them out"
            raise data_loss(queue, "", start["next"], end.first, why)
        if end.floor <= start.get("floor", 0):
            return start
        found = calls.group(self._server, queue, options.group)
        lost = found.lost - start.get("lost", 0)
        if options.fail_on_loss and end.floor > start["next"]:
            why = f"{lost} given up while the queue was full, or purged; raise the cap or set failOnDataLoss=false"
            raise data_loss(queue, options.group, start["next"], end.floor, why)
        log.warning("curbstone: %s group %s: %d messages before %d are lost", queue, options.group, lost, end.floor)
        return {**start, "next": max(start["next"], end.floor), "floor": end.floor, "lost": found.lost}

    # --- the ack

    def _ack(self, offset: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell the server what this query is done with; raise TwoReaders. What fails now is said again later."""
        if not self._options.group:
            return
        for queue, at in offset.items():
            up_to, known = at["next"] - 1, self._acked.get(queue)
            if up_to < 1 or known == (at["epoch"], up_to):
                continue
            try:
                calls.ack(self._server, queue, self._options.group, up_to, at["epoch"], self._reader)
                self._acked[queue] = (at["epoch"], up_to)
            except TwoReaders:
                raise
            except PipelineError as error:
                log.warning("curbstone: %s: ack of %d: %s", queue, up_to, error)


def shares(rows: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many rows of each queue come into a batch of `most`: in proportion, but one where there is one."""
    total = sum(rows.values())
    if total <= most:
        return dict(rows)
    given = {queue: max(1, count * most // total) if count else 0 for queue, count in rows.items()}
    # The ones may be more than the limit when there are very many queues: the longest wait.
    for queue in sorted(given, key=lambda name: rows[name]):
        over = sum(given.values()) - most
        if over <= 0:
            break
        given[queue] -= min(over, given[queue])
    return given
