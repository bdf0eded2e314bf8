"""Reading the journal as a stream. An offset is `{queue: {"position": n, "epoch": …}}`; position 0 is the oldest event.

Positions are opaque and increase, so the end of a batch is found by fetching its page. The task gets the page together
with its range. Only after a restart, when the batch is known from the checkpoint alone, does the task fetch the page
itself. Nothing is acked, because a journal lasts as long as the segments of the log, with or without readers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from curbstone.spark import calls
from curbstone.spark.batch import first_queues, queues_of
from curbstone.spark.client import Client
from curbstone.spark.columns import Columns
from curbstone.spark.failure import Refused
from curbstone.spark.gaps import DELETED, RECREATED, data_loss
from curbstone.spark.options import ReadOptions
from curbstone.spark.reading import Fetched, Range, read_journal
from curbstone.spark.source_types import DataSourceStreamReader, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, dict[str, Any]]
ROWS_MAX = 100_000
BYTES_MAX = 16 << 20

log = logging.getLogger("curbstone.spark")


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's streaming source for the journal."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._server = Client(options.address)
        self._ends: dict[str, int] | None = None
        """The first known end of each journal, if the query stops there."""
        self._fetched: dict[str, Fetched] = {}

    def initialOffset(self) -> Offset:
        start = self._options.start
        places = {queue: start.of(queue) if start else 0 for queue in first_queues(self._server, self._options)}
        return {queue: {"position": place if isinstance(place, int) else 0} for queue, place in places.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = {}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows = min(limit.max_rows, ROWS_MAX) if isinstance(limit, ReadMaxRows) else ROWS_MAX
        names = queues_of(self._server, self._options)
        latest = {**start, **{queue: self._next(queue, start.get(queue, {"position": 0}), rows) for queue in names}}
        if latest == start and self._ends is None:
            time.sleep(self._options.poll_wait_s)
        return start if latest == start else latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        ranges = []
        for queue, at in end.items():
            since = start.get(queue, {})
            low = since.get("position", 0) if since.get("epoch") in (None, at.get("epoch")) else 0
            if low < at["position"]:
                ranges.append(self._range(queue, at.get("epoch", ""), low, at["position"]))
        return ranges

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        return read_journal(partition, self._options, self._columns)

    def stop(self) -> None:
        self._server.close()

    def _range(self, queue: str, epoch: str, low: int, high: int) -> Range:
        known = self._fetched.pop(queue, None)
        if known and (known.epoch, known.low, known.high) == (epoch, low, high):
            return known
        strict = self._options.fail_on_loss
        return Range(queue, epoch, low, high, strict=strict and low > 0, tolerates_deletion=not strict)

    def _next(self, queue: str, at: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return where the batch that starts at `at` ends."""
        if self._ends is not None and at["position"] >= self._ends.get(queue, at["position"] + 1):
            return at
        query = {"from": at["position"], "limit": rows, "max_bytes": BYTES_MAX}
        try:
            reply = calls.journal(self._server, queue, query, at.get("epoch", ""))
        except Refused as refused:
            return self._after_gap(refused, queue, at, rows)
        if self._ends is not None:
            self._ends.setdefault(queue, reply.number("Journal-End"))
        epoch, following = reply.headers.get("X-Curbstone-Epoch", ""), reply.number("Next-Offset")
        if following <= at["position"]:
            return at
        self._fetched[queue] = Fetched(queue, epoch, at["position"], following, page=reply.body)
        return {"position": following, "epoch": epoch}

    def _after_gap(self, refused: Refused, queue: str, at: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return where to continue after the server reported that queue, epoch or position does not exist; or raise."""
        is_known = bool(at["position"])
        first = refused.members.get("first")
        if refused.status == calls.CONFLICT:
            self._lost(queue, at, None, RECREATED)
            return self._next(queue, {"position": 0}, rows)
        if refused.status == calls.NOT_FOUND and is_known:
            self._lost(queue, at, None, DELETED)
            return at
        if refused.status != calls.GONE or not isinstance(first, int):
            raise refused
        if is_known:
            self._lost(queue, at, first, "the log no longer has these events; read the journal more often")
        return {**at, "position": first}

    def _lost(self, queue: str, at: dict[str, Any], first: int | None, why: str) -> None:
        """Warn of lost events, or raise DataLoss if the options say so."""
        if self._options.fail_on_loss:
            why = f"{why}, or set failOnDataLoss=false"
            raise data_loss(f"{queue} (journal)", "", at["position"], first, why) from None
        log.warning("curbstone: %s: journal events are lost from position %d on: %s", queue, at["position"], why)
