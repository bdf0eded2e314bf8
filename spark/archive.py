"""`curbstone pipeline archive`: archives queues to a lake of Parquet files, once or for ever.

It reads through a group of its own, so it takes no message from anybody, and it acks messages that are in the lake. A
kill at any point loses nothing and duplicates nothing; see `lake`. Messages that the group lost, because a group may be
overtaken in a full queue, are recorded as a gap.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from curbstone.spark import checks, jobs
from curbstone.spark.claim import Check, claimed, locked
from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.gaps import gaps_in
from curbstone.spark.lake import Lake, checkpoint_in
from curbstone.spark.lake_columns import JOURNAL, MESSAGES
from curbstone.spark.lake_gaps import note_gap
from curbstone.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.3
GROUP = "archive"
PER_BATCH = 500_000
"""More than the default of a stream, because nothing is staged on the server, and files become fewer and larger."""


@dataclass
class Archived:
    """How much one run has stored."""

    messages: int = 0
    events: int = 0
    batches: int = 0
    gaps: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"archived {jobs.counted(self.messages, 'message')}"
        if self.events:
            text += f" and {jobs.counted(self.events, 'event')}"
        text += f" in {jobs.counted(self.batches, 'batch')}"
        return f"{text}; {jobs.counted(len(self.gaps), 'gap')}, see _gaps" if self.gaps else text


def archive(
    spark: SparkSession,
    lake_path: str,
    options: Mapping[str, str],
    *,
    once: bool = False,
    journal: bool = False,
    every_s: float = 5,
    checkpoint: str = "",
    stop: threading.Event | None = None,
) -> Archived:
    """Archive until there is nothing more (`once`), or until `stop` is set. Return how much was stored.

    `options` are those of the data source; the group is `archive` unless they name another. Raises what Spark
    raises, and PipelineError.
    """
    lake = Lake(spark, lake_path)
    chosen = {"groupId": GROUP, "maxOffsetsPerTrigger": str(PER_BATCH), **options}
    base = checkpoint or checkpoint_in(lake.path, chosen["groupId"])
    done = Archived()
    left_out = {"groupid", "startingoffsets", "startingtimestamp"}
    of_journal = {name: value for name, value in chosen.items() if name.lower() not in left_out} | {"mode": JOURNAL}
    tables = {MESSAGES: chosen, **({JOURNAL: of_journal} if journal else {})}
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{every_s:g} seconds"}
    with claimed(lake, base) as check:
        queries: list[Any] = []
        try:
            for table, given in tables.items():
                queries.append(_start(lake, table, given, f"{base}/{table}", done, check, trigger))
            while any(query.isActive for query in queries) and not (stop and stop.is_set()):
                queries[0].awaitTermination(POLL_S) if queries[0].isActive else queries[-1].awaitTermination(POLL_S)
                jobs.say(str(done))
                _raise_failed(queries)
            _raise_failed(queries)
        finally:
            jobs.say_done()
            for query in queries:
                query.stop()
    return done


def _start(
    lake: Lake,
    table: str,
    options: Mapping[str, str],
    checkpoint: str,
    done: Archived,
    check: Check,
    trigger: Mapping[str, Any],
) -> Any:
    """Start the query that fills one table."""
    from curbstone.spark.lake_source import LakeSource
    from curbstone.spark.source import register

    def store(parts: DataFrame, batch: int) -> None:
        run = parts.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not run:
            raise PipelineError("Spark did not say which query this batch belongs to")
        count = lake.add(table, run, batch, parts, check)
        if table == MESSAGES:
            done.messages += count
            _note_gaps(lake, checkpoint, run, batch, done)
        else:
            done.events += count
        done.batches += bool(count)

    # Each query has a registration of its own. Spark 4 keeps a map of environment variables for each registration and
    # changes the map when it plans a batch; meanwhile it must not send the same map to its executors for another query.
    register(lake.spark, LakeSource)
    stream = lake.spark.readStream.format(LakeSource.name()).options(**options, path=lake.path).load()
    writer = stream.writeStream.foreachBatch(store).option("checkpointLocation", checkpoint)
    return writer.queryName(f"archive-{table}").trigger(**trigger).start()


def _note_gaps(lake: Lake, checkpoint: str, run: str, batch: int, done: Archived) -> None:
    for gap in gaps_in(lake.offsets_of(checkpoint, batch) or {}):
        note_gap(lake.path, gap, run, batch)
        done.gaps.append(str(gap))
        jobs.warn(str(gap))


def _raise_failed(queries: Sequence[Any]) -> None:
    for query in queries:
        error = query.exception() if not query.isActive else None
        if error is not None:
            raise PipelineError(last_line(error)) from None


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser(
        "archive", "Archive queues to a lake of Parquet files. Each message is in it once, whatever is killed."
    )
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="a queue, as NAME or PROJECT/NAME")
    parser.add_argument(
        "--pattern", default="", metavar="REGEX", help="archive all queues of a project whose names match"
    )
    parser.add_argument(
        "--project", default="", help="the project of the pattern, and of queues that are named without one (default)"
    )
    parser.add_argument(
        "--lake", required=True, metavar="DIR", help="the directory of the lake, or an address that Spark can write to"
    )
    parser.add_argument(
        "--once", action="store_true", help="stop when everything that is in the queues now is archived"
    )
    parser.add_argument("--every", type=float, default=5, metavar="SECONDS", help="how often a batch is written (5)")
    parser.add_argument("--journal", action="store_true", help="archive what happened to the messages, too")
    parser.add_argument("--group", default=GROUP, help=f"the group to read as ({GROUP})")
    parser.add_argument("--start", default="earliest", help="where a new group starts: earliest, latest or a seq")
    parser.add_argument(
        "--max-per-batch", type=int, default=PER_BATCH, metavar="N", help=f"the most messages in a batch ({PER_BATCH})"
    )
    parser.add_argument(
        "--checkpoint", default="", metavar="DIR", help="where Spark records its progress (a directory in the lake)"
    )
    parser.add_argument(
        "--fail-on-data-loss", action="store_true", help="end if messages were lost, instead of recording the gap"
    )
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    from curbstone.spark.session import session

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
        if known.every < 0:
            raise PipelineError("--every: seconds, 0 or more")
    except PipelineError as error:
        raise jobs.Wrong(str(error)) from None
    _check(known, source)
    with jobs.stopping() as stop, session("curbstone archive", verbose=known.verbose) as spark:
        done = archive(
            spark,
            known.lake,
            options,
            once=known.once,
            journal=known.journal,
            every_s=known.every,
            checkpoint=known.checkpoint,
            stop=stop,
        )
    return str(done)


def _queues(known: argparse.Namespace) -> dict[str, str]:
    """Return the options that name the queues. Raise Wrong if they are not named, or named twice."""
    if bool(known.queues) == bool(known.pattern):
        raise jobs.Wrong("which queues? Name them, or give --pattern")
    which = {"queuePattern": known.pattern} if known.pattern else {"queues": ",".join(known.queues)}
    return {**which, "project": known.project} if known.project else which


def _check(known: argparse.Namespace, source: ReadOptions) -> None:
    """Raise PipelineError now for errors that would end the job as soon as Java runs."""
    checks.check_writable(known.lake, "--lake")
    checkpoint = checks.local_folder(known.checkpoint or checkpoint_in(known.lake, known.group))
    is_new = checkpoint is not None and not checkpoint.exists()
    if source.pattern:
        checks.check_pattern(source.address, source.project, source.pattern, must_exist=is_new)
    else:
        checks.check_server(source.address, source.queues, must_exist=is_new)
    if checkpoint is not None:
        with locked(checkpoint):
            pass  # only tried here: `archive` takes the lock itself, because a program may call it directly


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given))


if __name__ == "__main__":
    sys.exit(main())
