"""`curbstone pipeline replay`: messages out of a lake into queues again, in their order, once per name.

A replay is one transaction named after it, so that all of it is published or nothing, and the same replay again
publishes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curbstone.spark import calls, checks, jobs
from curbstone.spark.failure import PipelineError
from curbstone.spark.lake import MESSAGES, Lake
from curbstone.spark.options import moment_ms, write_options
from curbstone.spark.server import Server, checked_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,190}")
FROM_HEADER = "x-replayed-from"


@dataclass(frozen=True)
class Filter:
    """What of the lake is meant: messages of these queues, published from `since_ms` and before `until_ms`."""

    queues: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    where: str = ""
    """A condition in SQL over the columns of the lake, such as `headers['x-msg-x-lang'] = 'de'`."""


@dataclass(frozen=True)
class Replayed:
    """`messages` of the lake were chosen; `repeated`: this name was replayed before, so none was published now."""

    messages: int
    bytes: int
    queues: int
    repeated: bool = False


def chosen(lake: Lake, wanted: Filter) -> DataFrame:
    """Return the rows meant, each message once; raise PipelineError for a condition that is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    rows = lake.read(MESSAGES)
    if wanted.queues:
        rows = rows.where(f.concat_ws("/", "project", "queue").isin(list(wanted.queues)))
    if wanted.since_ms is not None:
        rows = rows.where(f.unix_millis("timestamp") >= wanted.since_ms)
    if wanted.until_ms is not None:
        rows = rows.where(f.unix_millis("timestamp") < wanted.until_ms)
    if wanted.where:
        try:
            rows = rows.where(wanted.where)
        except PySparkException as error:
            raise PipelineError(f"--where: {str(error).splitlines()[0]}") from None
    return rows.dropDuplicates(["project", "queue", "epoch", "seq"])


def replay(
    spark: SparkSession, lake_path: str, name: str, options: Mapping[str, str], wanted: Filter, *, dry_run: bool = False
) -> Replayed:
    """Publish what `wanted` means to the queues it came from, or to the option `queue`; return how many messages.

    `options` are those of the data source. Raises PipelineError, and what Spark raises.
    """
    from pyspark.sql import functions as f

    rows = chosen(Lake(spark, lake_path), wanted)
    jobs.say("looking through the lake")
    sums = rows.agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum(f.length("body")).alias("bytes"),
        f.count_distinct("project", "queue").alias("queues"),
        f.collect_set("project").alias("projects"),
    ).collect()[0]
    found = Replayed(sums.messages, sums.bytes or 0, sums.queues)
    if dry_run or not found.messages:
        jobs.say_done()
        return found
    checked = write_options({**options, "transactionId": f"replay-{name}"}, stream=False)
    target = dict(options)
    if checked.queue:
        project = checked_name(checked.queue).project
    else:
        if len(sums.projects) > 1:
            raise PipelineError("messages of several projects: replay them one project at a time, or give --into")
        project = target["project"] = sums.projects[0]
    server = Server(checked.address)
    try:
        state = calls.transaction_state(server, project, checked.transaction)
        if state is not None and state["state"] == "committed":
            return Replayed(found.messages, found.bytes, found.queues, repeated=True)
    finally:
        server.close()
    jobs.say(f"replaying {found.messages:,} messages")
    writer = _in_order(rows, keep_queue=not checked.queue).write.format("curbstone").options(**target)
    writer.option("transactionId", checked.transaction).mode("append").save()
    jobs.say_done()
    return found


def _in_order(rows: DataFrame, *, keep_queue: bool) -> DataFrame:
    """Return what is written: by queue, then in the order of publishing, also over queues made anew."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    began = f.min("timestamp").over(Window.partitionBy("project", "queue", "epoch"))
    place = f.concat(f.col("project"), f.lit("/"), f.col("queue"), f.lit("/"), f.col("seq").cast("string"))
    named = f.map_concat(
        f.map_filter("headers", lambda key, _: key != FROM_HEADER), f.create_map(f.lit(FROM_HEADER), place)
    )
    ordered = rows.withColumn("began", began).orderBy("project", "queue", "began", "epoch", "seq")
    columns = ["body", "content_type", named.alias("headers")]
    if keep_queue:
        columns.append(f.concat_ws("/", "project", "queue").alias("queue"))
    return ordered.select(*columns)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line; ends the process with code 2 where it is wrong."""
    parser = jobs.parser(
        "replay", "Publish messages of a lake again, in their order; the same NAME again does nothing."
    )
    parser.add_argument("name", metavar="NAME", help="what this replay is called, 1 to 190 of A-Z a-z 0-9 . _ : -")
    parser.add_argument("--lake", required=True, metavar="DIR", help="the lake that `archive` fills")
    parser.add_argument("--queue", action="append", default=[], metavar="QUEUE", help="only of this one (repeatable)")
    parser.add_argument("--since", default="", metavar="TIME", help="published at or after, as 2026-01-31T12:00:00Z")
    parser.add_argument("--until", default="", metavar="TIME", help="published before")
    parser.add_argument("--where", default="", metavar="SQL", help="a condition, as \"content_type = 'text/csv'\"")
    parser.add_argument("--into", default="", metavar="QUEUE", help="this queue instead of those they came from")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be published")
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    from curbstone.spark.session import session

    options = {**jobs.source_options(known), **({"queue": known.into} if known.into else {})}
    try:
        if not _NAME.fullmatch(known.name):
            raise PipelineError("a replay's name is 1 to 190 of A-Z a-z 0-9 . _ : -")
        target = write_options(options, stream=False)
        wanted = Filter(
            tuple(str(checked_name(queue)) for queue in known.queue),
            moment_ms(known.since, "--since") if known.since else None,
            moment_ms(known.until, "--until") if known.until else None,
            known.where,
        )
    except PipelineError as error:
        raise jobs.Wrong(str(error)) from None
    checks.check_lake(known.lake, MESSAGES)
    if not known.dry_run:
        checks.check_server(target.address, (target.queue,) if target.queue else ())
    with session("curbstone replay", verbose=known.verbose, short=True) as spark:
        done = replay(spark, known.lake, known.name, options, wanted, dry_run=known.dry_run)
    what = f"{jobs.counted(done.messages, 'message')} ({done.bytes:,} bytes) of {jobs.counted(done.queues, 'queue')}"
    if known.dry_run:
        return f"would replay {what}"
    if done.repeated:
        return f"replay {known.name} was done before; nothing was published"
    return f"replayed {what}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given))


if __name__ == "__main__":
    sys.exit(main())
