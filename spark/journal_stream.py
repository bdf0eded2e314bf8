"""Reading the journal as a stream. An offset is `{queue: {"position": n, "epoch": …}}`.

Positions are opaque and grow, so where a batch ends is found by asking for its page. The page then goes to the task
with its range; only after a restart, when the batch is known from the checkpoint alone, does the task ask for it.
Nothing is acked: a journal is there as long as the log's segments are, whoever reads it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from curbstone.spark import calls
from curbstone.spark.batch import queues_of
from curbstone.spark.columns import Columns
from curbstone.spark.failure import Refused
from curbstone.spark.frames import read_events
from curbstone.spark.options import ReadOptions
from curbstone.spark.reading import Fetched, Range, data_loss, read_journal
from curbstone.spark.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, dict[str, Any]]
ROWS_MAX = 100_000
BYTES_MAX = 16 << 20

log = logging.getLogger("curbstone.spark")


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._server = Server(options.address)
        self._until_ms: int | None = None
        self._fetched: dict[str, Fetched] = {}

    def initialOffset(self) -> Offset:
        start = self._options.start
        places = {queue: start.of(queue) if start else 0 for queue in queues_of(self._server, self._options)}
        return {queue: {"position": place if isinstance(place, int) else 0} for queue, place in places.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until_ms = time.time_ns() // 1_000_000

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows = min(limit.max_rows, ROWS_MAX) if isinstance(limit, ReadMaxRows) else ROWS_MAX
        names = queues_of(self._server, self._options) if self._until_ms is None else tuple(start)
        latest = {queue: self._next(queue, start.get(queue, {"position": 0}), rows) for queue in names}
        if latest == start and self._until_ms is None:
            time.sleep(self._options.poll_wait_s)
        return start if latest == start else latest

    def partitions(self, start: Offset, end: Offset) -> Sequence[Range]:
        pairs = [(queue, start.get(queue, {}).get("position", 0), at["position"]) for queue, at in end.items()]
        return [self._range(queue, low, high) for queue, low, high in pairs if low < high]

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        return read_journal(partition, self._options, self._columns)

    def stop(self) -> None:
        self._server.close()

    def _range(self, queue: str, low: int, high: int) -> Range:
        known = self._fetched.pop(queue, None)
        if known and (known.low, known.high) == (low, high):
            return known
        return Range(queue, "", low, high, strict=self._options.fail_on_loss and low > 0)

    def _next(self, queue: str, at: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return where the batch that starts at `at` ends."""
        query = {"from": at["position"], "limit": rows, "max_bytes": BYTES_MAX}
        try:
            reply = calls.journal(self._server, queue, query)
        except Refused as refused:
            first = refused.members.get("first")
            if refused.status != calls.GONE or not isinstance(first, int):
                raise
            if at["position"] and self._options.fail_on_loss:
                why = "the log no longer goes back so far; read the journal more often, or set failOnDataLoss=false"
                raise data_loss(f"{queue} (journal)", "", at["position"], first, why) from None
            log.warning("curbstone: %s: the journal is gone before position %d", queue, first)
            return {**at, "position": first}
        if self._until_ms is not None:
            events = read_events(reply.body)
            if not events or events[0].time_ms > self._until_ms:
                return at
        following = max(at["position"], reply.number("Next-Offset"))
        if following > at["position"]:
            epoch = reply.headers.get("X-Curbstone-Epoch", "")
            self._fetched[queue] = Fetched(queue, epoch, at["position"], following, page=reply.body)
        return {**at, "position": following}
