"""The figures of the report: per queue, group and minute, out of the journal and the lake.

A message counts as published once per group that reads the queue (the unnamed group is always one), as each of them
has it to settle; a message that names its groups counts for these. Latency is the time from publish to settle, and
exact. The backlog is what was published and not yet settled, rejected, expired, purged or skipped, since the
beginning of what the journal and the lake know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from curbstone.spark.failure import PipelineError
from curbstone.spark.lake import JOURNAL, MESSAGES, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTES_MAX = 500_000
"""Rows of a report; more is a report over too long a time."""

_EVENT = ("project", "queue", "epoch", "position", "event", "seq", "count", "time", "group", "bytes")
_OF_MESSAGE = ("project", "queue", "epoch", "seq")
_PLACE = ("project", "queue", "group", "minute")
_ENDED = ("settled", "rejected", "dead", "expired", "purged", "skipped")


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in one minute; `p50` and so on are milliseconds, None where nothing was settled."""

    project: str
    queue: str
    group: str
    minute: datetime
    published: int
    bytes: int
    settled: int
    retried: int
    rejected: int
    expired: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    backlog: int


def events_of(spark: SparkSession, options: Mapping[str, str] | None, lake: Lake | None) -> DataFrame:
    """Return the events of the server's journals, of the lake's, or of both, each once; raise PipelineError."""
    from pyspark.sql import functions as f

    parts: list[DataFrame] = []
    if options:
        live = spark.read.format("curbstone").options(**{**options, "mode": "journal"}).load()
        name = f.split("queue", "/")
        parts.append(live.withColumn("project", name[0]).withColumn("queue", name[1]).select(*_EVENT))
    if lake and lake.has(JOURNAL):
        parts.append(lake.read(JOURNAL).select(*_EVENT))
    if not parts:
        raise PipelineError("there is no journal: name queues, or a lake that `archive --journal` has filled")
    together = parts[0]
    for part in parts[1:]:
        together = together.unionByName(part)
    return together.dropDuplicates(["project", "queue", "epoch", "position", "event", "seq", "group"])


def published_of(events: DataFrame, lake: Lake | None) -> DataFrame:
    """Return each message once, with when it came, its bytes and the group it names ("": all)."""
    from pyspark.sql import functions as f

    columns = (*_OF_MESSAGE, "time", "bytes", "group")
    found = events.where(f.col("event") == "published").select(*columns)
    if lake and lake.has(MESSAGES):
        # What came before the journal begins.
        stored = lake.read(MESSAGES).select(
            *_OF_MESSAGE,
            f.col("timestamp").alias("time"),
            f.length("body").cast("long").alias("bytes"),
            f.lit("").alias("group"),
        )
        known = found.select(*_OF_MESSAGE).distinct()
        older = stored.dropDuplicates(list(_OF_MESSAGE)).join(known, list(_OF_MESSAGE), "left_anti")
        found = found.unionByName(older)
    return found.dropDuplicates([*_OF_MESSAGE, "group"])


def minutes_of(events: DataFrame, published: DataFrame) -> DataFrame:
    """Return a row per project, queue, group and minute: the columns of `Minute`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    to_minute = f.date_trunc("minute", "time").alias("minute")
    named = events.where(f.col("event") != "published").select("project", "queue", "group")
    unnamed = published.select("project", "queue").distinct().withColumn("group", f.lit(""))
    readers = named.unionByName(unnamed).distinct()
    for_whom = published.withColumnRenamed("group", "named").join(readers, ["project", "queue"])
    came = (
        for_whom.where((f.col("named") == "") | (f.col("named") == f.col("group")))
        .groupBy("project", "queue", "group", to_minute)
        .agg(f.count(f.lit(1)).alias("published"), f.sum("bytes").alias("bytes"))
    )
    kinds = {"settled": ["settled"], "rejected": ["rejected", "dead"], "expired": ["expired"], "retried": ["released"]}

    def total(names: Sequence[str]) -> Any:
        return f.sum(f.when(f.col("event").isin(list(names)), f.col("count")).otherwise(0))

    went = events.where(f.col("event") != "published").groupBy("project", "queue", "group", to_minute)
    gone = went.agg(*[total(names).alias(name) for name, names in kinds.items()], total(_ENDED).alias("ended"))
    joined = came.join(gone, list(_PLACE), "outer").join(_latencies(events, published), list(_PLACE), "left")
    filled = joined.fillna(0, ["published", "bytes", "ended", *kinds])
    so_far = Window.partitionBy("project", "queue", "group").orderBy("minute")
    backlog = f.greatest(f.lit(0), f.sum(f.col("published") - f.col("ended")).over(so_far))
    return filled.withColumn("backlog", backlog).drop("ended")


def _latencies(events: DataFrame, published: DataFrame) -> DataFrame:
    """Return the percentiles of the time from publish to settle, per place and minute of settling."""
    from pyspark.sql import functions as f

    settled = events.where(f.col("event") == "settled").select(
        "project",
        "queue",
        "epoch",
        "group",
        f.col("time").alias("settled_at"),
        f.explode(f.sequence("seq", f.col("seq") + f.col("count") - 1)).alias("seq"),
    )
    times = published.select(*_OF_MESSAGE, "time").dropDuplicates(list(_OF_MESSAGE))
    took = (f.unix_millis("settled_at") - f.unix_millis("time")).alias("ms")
    each = settled.join(times, list(_OF_MESSAGE)).select(
        "project", "queue", "group", f.date_trunc("minute", "settled_at").alias("minute"), took
    )
    ranks = f.expr("percentile(ms, array(0.5, 0.95, 0.99))").alias("ranks")
    found = each.groupBy(*_PLACE).agg(ranks)
    columns = [f.col("ranks")[place].alias(f"p{rank}_ms") for place, rank in enumerate((50, 95, 99))]
    return found.select(*_PLACE, *columns)


def collect(minutes: DataFrame) -> list[Minute]:
    """Bring the figures to this process, in order; raise PipelineError where there are too many for a page."""
    rows = minutes.orderBy(*_PLACE).limit(MINUTES_MAX + 1).collect()
    if len(rows) > MINUTES_MAX:
        raise PipelineError(f"more than {MINUTES_MAX:,} rows; report on fewer queues or a shorter time")
    return [Minute(**row.asDict()) for row in rows]
