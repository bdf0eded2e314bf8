"""`curbstone pipeline archive`: archives queues to a lake of Parquet files, once or continuously. It needs no Spark.

It reads through its own group, so consumers keep all messages. Each batch is one commit to a table, which also records
the position in each queue; see `positions`. The group is acked once files and commit are synced. So a kill or a power
cut at any point loses nothing and duplicates nothing. Messages that the group lost, which a full queue can cause, are
recorded as a gap.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from curbstone.spark import calls, checks, delta_log, gaps, jobs, positions, typed
from curbstone.spark.client import Client
from curbstone.spark.columns import COLUMNS, DAY, JOURNAL, MESSAGES, QUEUE, TABLES
from curbstone.spark.failure import PipelineError, Refused
from curbstone.spark.gaps import Gap
from curbstone.spark.iceberg import Mirrors
from curbstone.spark.journal_stream import JournalStreamReader
from curbstone.spark.options import ReadOptions, read_options
from curbstone.spark.places import Offset, Place
from curbstone.spark.status import GROUP, Metrics
from curbstone.spark.stream import StreamReader
from curbstone.spark.table import Table, absolute

if TYPE_CHECKING:
    import pyarrow

    from curbstone.spark.parts import Part

SCHEMAS_AGE_S = 10.0
PER_BATCH = 500_000
"""More than the default of a stream, because nothing is staged on the server, and fewer, larger files are better."""


@dataclass
class Archived:
    """What one run has stored."""

    messages: int = 0
    events: int = 0
    batches: int = 0
    gaps: list[str] = field(default_factory=list)
    committed_at: float = 0
    """The time of the last commit, in seconds since 1970."""

    def __str__(self) -> str:
        text = f"archived {jobs.quantity(self.messages, 'message')}"
        if self.events:
            text += f" and {jobs.quantity(self.events, 'event')}"
        text += f" in {jobs.quantity(self.batches, 'batch')}"
        return f"{text}; {jobs.quantity(len(self.gaps), 'gap')}, see the table gaps" if self.gaps else text


def archive(
    spark: object,
    lake_path: str,
    options: Mapping[str, str],
    *,
    once: bool = False,
    journal: bool = False,
    every_s: float = 5,
    checkpoint: str = "",
    stop: threading.Event | None = None,
    columns: str = "",
    by_queue: bool = False,
    done: Archived | None = None,
) -> Archived:
    """Archive until the queues are read to their end (`once`), or until `stop` is set. Return what was stored.

    `options` are those of the data source; the group is `archive` unless they name another. `spark` is not used, and
    may be None. `checkpoint` is that of an earlier release, if it was not in the lake. `columns` are typed columns; see
    `typed`. `by_queue` partitions a new lake by queue and day. The counts in `done` grow meanwhile. Raise
    PipelineError.
    """
    lake = absolute(lake_path)
    for table in [Table(lake, name) for name in TABLES]:
        if torn := delta_log.repair(table.uri):
            jobs.warn(f"{torn}: a power cut damaged this commit; nothing of it was acked, and it was set aside")
    plain_headers = Table(lake, MESSAGES).plain_headers
    chosen = {"groupId": GROUP, "maxOffsetsPerTrigger": str(PER_BATCH), **options}
    source = replace(read_options(chosen, stream=True), plain_headers=plain_headers)
    if not (source.headers and source.body):
        raise PipelineError("an archive stores whole messages: remove includeHeaders and includeBody")
    base, mirrors = checkpoint or checkpoint_in(lake, source.group), Mirrors(lake)
    done, stopped = done or Archived(), stop or threading.Event()
    feeds = [_messages(lake, source, base, columns)]
    if journal:
        left_out = {"groupid", "startingoffsets", "startingtimestamp"}
        of_journal = {name: value for name, value in chosen.items() if name.lower() not in left_out}
        feeds.append(_journal(lake, read_options(of_journal | {"mode": JOURNAL}, stream=True), base))
    try:
        for feed in feeds:
            if by_queue:
                feed.table.partition_by_queue()
            feed.begin(once=once)
        while not stopped.is_set():
            began = time.monotonic()
            rows = [feed.step(done) for feed in feeds]
            jobs.show_status(str(done))
            if once and all(count is None for count in rows):
                break
            mirrors.update()
            if not once and max(count or 0 for count in rows) < PER_BATCH // 2:
                stopped.wait(max(0.0, every_s - (time.monotonic() - began)))
        mirrors.update(at_once=True)
    finally:
        jobs.clear_status()
        for feed in feeds:
            feed.reader.stop()
    return done


def checkpoint_in(lake: str, group: str) -> str:
    """Return where an earlier release kept the checkpoint of an archive that reads through this group."""
    return f"{lake.rstrip('/')}/_checkpoints/{group}"


@dataclass
class Counts:
    """The counts of a queue since its seq `begin`; see `positions`."""

    begin: int
    rows: int = 0
    missed: int = 0
    gap: int = 0

    @classmethod
    def taken_from(cls, at: Place) -> Counts:
        """Remove the counts from a place and return them."""
        taken = {name: at.pop(name) for name in positions.COUNTS if name in at}
        return cls(**({"begin": at["next"]} | taken))


class _Feed:
    """Fills one table: it plans a batch, reads it into files, and commits them with the new positions."""

    def __init__(
        self,
        table: Table,
        reader: StreamReader | JournalStreamReader,
        options: ReadOptions,
        checkpoint: str,
        columns: str = "",
    ) -> None:
        self.reader = reader
        self._typed = _Typed(table, options, columns) if columns else None
        self.table = table
        self._options = options
        self._checkpoint = checkpoint
        self._at: Offset = {}
        self._counts: dict[str, Counts] = {}
        self._stored: dict[str, int] = {}
        self._early: list[Gap] = []
        """The gaps before the first batch."""

    def begin(self, *, once: bool) -> None:
        """Find the place in each queue: in the table, in the checkpoint of an earlier release, or by the group."""
        if self.table.exists:
            self.table.sync()  # a killed process may not have synced the rows that are acked now
        known = positions.stored(self.table)
        self._stored = positions.transactions(self.table, known)
        if self.table.name == MESSAGES:
            self._counts = {queue: Counts.taken_from(at) for queue, at in known.items()}
        known = known or positions.of_checkpoint(self.table, self._checkpoint)
        self._at = {queue: self._completed(queue, at) for queue, at in known.items() if self._options.reads(queue)}
        if isinstance(self.reader, StreamReader):
            self.reader.stored = self._rows_in
        if not self._at:
            self._at = self.reader.initialOffset()
            self._early = gaps.gaps_in(self._at)
        if isinstance(self.reader, StreamReader):
            numbers = {queue: counts.gap for queue, counts in self._counts.items()}
            gaps.remove_after(self.table.lake, dict.fromkeys(self._at, 0) | numbers)
        if once:
            self.reader.prepareForTriggerAvailableNow()

    def _completed(self, queue: str, at: dict[str, Any]) -> dict[str, Any]:
        """Return a place with the group's losses. An earlier release did not store them, and a journal has none."""
        if self.table.name == JOURNAL or "lost" in at:
            return at
        server = Client(self._options.address)
        try:
            group = calls.group(server, queue, self._options.group)
            return {**at, "floor": group.floor, "lost": group.lost}
        except Refused:
            return at  # the reader reports that the queue or the group is gone
        finally:
            server.close()

    def step(self, done: Archived) -> int | None:
        """Archive a batch. Return the number of its rows, or None if there is nothing new."""
        start, end = self._at, self.reader.latestOffset(self._at, self.reader.getDefaultReadLimit())
        if end == start and not self._early:
            return None
        tasks = self.reader.partitions(start, end)
        if self._typed:
            self._typed.prepare(end)
        parts, counts = _written(self.table, self.reader, tasks, self._typed)
        rows = sum(counts.values())
        found, self._early = self._early + (gaps.gaps_in(end) if end != start else []), []
        numbered = self._count(start, end, counts, found)
        if numbered:
            gaps.record(self.table.lake, numbered)
        if parts or found or self.table.exists:
            places = {
                queue: at | (asdict(self._counts[queue]) if queue in self._counts else {}) for queue, at in end.items()
            }
            sets = positions.transactions(self.table, places)
            sets = {name: value for name, value in sets.items() if self._stored.get(name) != value}
            if parts or sets:
                self.table.commit(parts, sets, self._stored)
                done.committed_at = time.time()
            self._stored |= sets
        self._at = end
        for gap in found:
            done.gaps.append(str(gap))
            jobs.warn(str(gap))
        if isinstance(self.reader, StreamReader):
            self.reader.commit(end)
            done.messages += rows
        else:
            done.events += rows
        done.batches += bool(rows)
        return rows

    def _count(
        self, start: Offset, end: Offset, rows: Mapping[str, int], found: Sequence[Gap]
    ) -> list[tuple[int, Gap]]:
        """Count the rows of a batch and the losses before it. Return the gaps with their numbers."""
        numbered: list[tuple[int, Gap]] = []
        if self.table.name == JOURNAL:
            return numbered
        for queue, at in end.items():
            since = start.get(queue, {})
            if queue not in self._counts or since.get("epoch") != at["epoch"]:
                number = self._counts[queue].gap if queue in self._counts else 0
                self._counts[queue] = Counts(begin=at["from"] if "from" in at else at["next"], gap=number)
            self._counts[queue].rows += rows.get(queue, 0)
        for gap in found:
            counts, at = self._counts[gap.queue], end[gap.queue]
            counts.gap += 1
            numbered.append((counts.gap, gap))
            if gap.epoch == at["epoch"] and gap.low >= counts.begin:
                counts.missed += gap.lost if gap.lost is not None else max(0, at.get("from", gap.low) - gap.low)
        return numbered

    def _rows_in(self, queue: str, epoch: str, low: int, high: int) -> int:
        """Return the number of messages of a range in the table."""
        import pyarrow.compute as pc

        project, _, name = queue.partition("/")
        is_of = (pc.field("project") == project) & (pc.field("queue") == name) & (pc.field("epoch") == epoch)
        found: int = self.table.dataset().count_rows(is_of & (pc.field("seq") >= low) & (pc.field("seq") < high))
        return found


class _Typed:
    """The typed columns of a table, by queue."""

    def __init__(self, table: Table, options: ReadOptions, columns: str) -> None:
        self._table = table
        self._address = options.address
        self._fixed = typed.parse(columns) if columns != typed.BY_SCHEMA else None
        self._of_queues: dict[str, tuple[typed.Column, ...]] = {}
        self._asked_at = -SCHEMAS_AGE_S
        self._stored: dict[str, Any] = {}
        for column in self._fixed or ():
            known = table.typed().get(column.name)
            [wanted, _] = typed.fields([column])
            if known is not None and known.type != wanted.type:
                advice = f"give the new one another name, such as {column.name}_2 … FROM $.{column.name}"
                raise PipelineError(
                    f"--columns: {column.name} is {known.type} in the lake, not {wanted.type}; {advice}"
                )

    def prepare(self, queues: Iterable[str]) -> None:
        """Determine the columns of the queues of a batch, and add new ones to the table."""
        if self._fixed is not None:
            self._of_queues = dict.fromkeys(queues, self._fixed)
        elif time.monotonic() - self._asked_at >= SCHEMAS_AGE_S:
            client = Client(self._address)
            try:
                self._of_queues |= typed.of_queues(client, queues)
            finally:
                client.close()
            self._asked_at = time.monotonic()
        known = self._table.typed()
        wanted = typed.fields(column for columns in self._of_queues.values() for column in columns)
        self._stored = {field.name: field for field in wanted} | known
        self._table.more = list(self._stored.values())

    def added(self, batch: pyarrow.RecordBatch, queue: str) -> pyarrow.RecordBatch:
        """Return rows of a queue with its typed columns."""
        columns = self._of_queues.get(queue)
        return typed.added(batch, columns, self._stored) if columns else batch


def _messages(lake: str, options: ReadOptions, checkpoint: str, columns: str) -> _Feed:
    # All archives of a lake are one reader of a group: the lake's commits prevent conflicts between them.
    reader = StreamReader(options, _columns(MESSAGES), uuid.uuid5(uuid.NAMESPACE_URL, lake).hex)
    return _Feed(Table(lake, MESSAGES), reader, options, checkpoint, columns)


def _journal(lake: str, options: ReadOptions, checkpoint: str) -> _Feed:
    return _Feed(Table(lake, JOURNAL), JournalStreamReader(options, _columns(JOURNAL)), options, checkpoint)


def _columns(table: str) -> tuple[tuple[str, bool], ...]:
    """Return the columns to read for a table. The project is read as part of the queue's name."""
    return tuple((name, True) for name in COLUMNS[table] if name != "project")


def _written(
    table: Table, reader: StreamReader | JournalStreamReader, tasks: Iterable[Any], columns: _Typed | None
) -> tuple[list[Part], dict[str, int]]:
    """Read the tasks of a batch into files of the table. Return the files, and the number of rows of each queue."""
    from curbstone.spark.parts import PartWriter, in_project_and_queue

    writer = PartWriter(table.uri, table.name, table.more, by_queue=QUEUE in table.partition)
    rows: dict[str, int] = {}
    try:
        for task in tasks:
            for batch in reader.read(task):
                if batch.num_rows:
                    queue = batch.column("queue")[0].as_py()  # a page is of one queue
                    rows[queue] = rows.get(queue, 0) + batch.num_rows
                    writer.add(in_project_and_queue(columns.added(batch, queue) if columns else batch))
        return writer.close(), rows
    except BaseException:
        writer.drop()
        raise


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser(
        "archive", "Archive queues to a lake of Parquet files. It stores each message exactly once, even after a crash."
    )
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="a queue, as NAME or PROJECT/NAME")
    parser.add_argument(
        "--pattern", default="", metavar="REGEX", help="archive all queues of a project whose names match"
    )
    parser.add_argument(
        "--project", default="", help="the project of the pattern, and of queues that are named without one (default)"
    )
    parser.add_argument("--lake", required=True, metavar="DIR", help="the directory of the lake, or its address")
    parser.add_argument("--once", action="store_true", help="stop when the present messages of the queues are archived")
    parser.add_argument("--every", type=float, default=5, metavar="SECONDS", help="how often a batch is written (5)")
    parser.add_argument("--journal", action="store_true", help="also archive the events of the messages")
    parser.add_argument("--group", default=GROUP, help=f"the group to read as ({GROUP})")
    parser.add_argument("--start", default="earliest", help="where a new group starts: earliest, latest or a seq")
    parser.add_argument(
        "--max-per-batch", type=int, default=PER_BATCH, metavar="N", help=f"the most messages in a batch ({PER_BATCH})"
    )
    parser.add_argument(
        "--checkpoint", default="", metavar="DIR", help="the checkpoint of an earlier release, to continue from once"
    )
    parser.add_argument(
        "--fail-on-data-loss", action="store_true", help="end if messages were lost, instead of recording the gap"
    )
    parser.add_argument(
        "--partition",
        choices=(DAY, QUEUE),
        default=DAY,
        help="the partitions of a new lake: by date, or by queue and date, for queries of single queues",
    )
    parser.add_argument(
        "--columns",
        default="",
        metavar="COLUMNS",
        help="typed columns from JSON bodies: 'order_id BIGINT, lang VARCHAR FROM $.user.lang', or schema for the"
        " properties of each queue's JSON Schema",
    )
    parser.add_argument(
        "--metrics", default="", metavar="HOST:PORT", help="serve /metrics for Prometheus there, such as 127.0.0.1:9109"
    )
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    options = {
        **jobs.source_options(known),
        **_queues(known),
        "groupId": known.group,
        "startingOffsets": known.start,
        "maxOffsetsPerTrigger": str(known.max_per_batch),
        "failOnDataLoss": str(known.fail_on_data_loss).lower(),
    }
    try:
        source = read_options(options, stream=True)
        if known.columns and known.columns != typed.BY_SCHEMA:
            typed.parse(known.columns)
        if known.every < 0:
            raise PipelineError("--every: seconds, 0 or more")
    except PipelineError as error:
        raise jobs.UsageError(str(error)) from None
    _check(known, source)
    done = Archived()
    with jobs.stopping() as stop, ExitStack() as stack:
        if known.metrics:
            stack.enter_context(Metrics(known.lake, source.address, known.group, done).served(known.metrics))
        archive(
            None,
            known.lake,
            options,
            once=known.once,
            journal=known.journal,
            every_s=known.every,
            checkpoint=known.checkpoint,
            stop=stop,
            columns=known.columns,
            by_queue=known.partition == QUEUE,
            done=done,
        )
    return str(done)


def _queues(known: argparse.Namespace) -> dict[str, str]:
    """Return the options that name the queues. Raise UsageError if they are not named, or named twice."""
    if bool(known.queues) == bool(known.pattern):
        raise jobs.UsageError("no queues: name them, or use --pattern")
    which = {"queuePattern": known.pattern} if known.pattern else {"queues": ",".join(known.queues)}
    return {**which, "project": known.project} if known.project else which


def _check(known: argparse.Namespace, source: ReadOptions) -> None:
    """Raise PipelineError if the lake can't be written, or a new lake names queues that do not exist."""
    checks.check_writable(known.lake, "--lake")
    is_new = not Table(known.lake, MESSAGES).exists
    if source.pattern:
        checks.check_pattern(source.address, source.project, source.pattern, must_exist=is_new)
    else:
        checks.check_server(source.address, source.queues, must_exist=is_new)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
