"""The lake: Parquet files in directories named by what they are, so that any reader of Parquet sees each row once.

::

    <lake>/messages/run=<query id>/batch=<number>/project=…/queue=…/date=…/part-….parquet
    <lake>/journal/…                              the same
    <lake>/_gaps/<queue>-<epoch>-<from>-<to>.json  messages that were lost before they could be archived
    <lake>/_checkpoints/…                         where the archive goes on
    <lake>/_work/…                                a batch that is being written

A batch appears whole, by a rename, and never changes: a batch that is run again finds its directory and writes
nothing. The run's id is part of the path because a new checkpoint counts its batches from 0 again. Readers leave
out names that begin with an underscore.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curbstone.spark.failure import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES, JOURNAL = "messages", "journal"
TABLES = (MESSAGES, JOURNAL)
PARTITIONS = ("project", "queue", "date")

_STORED = {
    MESSAGES: (
        "epoch STRING, seq LONG, message_id STRING, timestamp TIMESTAMP, content_type STRING,"
        " headers MAP<STRING,STRING>, body BINARY, tries INT"
    ),
    JOURNAL: (
        "epoch STRING, position LONG, event STRING, seq LONG, count LONG, time TIMESTAMP, group STRING, tries INT,"
        " due TIMESTAMP, bytes LONG"
    ),
}
_FOUND_BY = ", run STRING, batch STRING, project STRING, queue STRING, date DATE"
_MOMENT = {MESSAGES: "timestamp", JOURNAL: "time"}


@dataclass(frozen=True)
class Gap:
    """Messages `low` to `high` - 1 of which `lost` were given up; `made_anew`: the queue itself was replaced."""

    queue: str
    epoch: str
    low: int
    high: int
    lost: int
    made_anew: bool

    def __str__(self) -> str:
        if self.made_anew:
            return f"{self.queue}: the queue was deleted and made anew after seq {self.low - 1}"
        return f"{self.queue}: {self.lost:,} messages between {self.low} and {self.high - 1} were lost"


class Lake:
    """A directory that Spark can reach: a path, or an address such as `hdfs://…`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path.rstrip("/")
        if not hasattr(spark, "_jvm"):
            raise PipelineError("a lake needs Spark in this process; Spark Connect can read, write and stream queues")
        jvm: Any = spark.sparkContext._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._files = self._path_of(self.path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._java = jvm

    def checkpoint(self, name: str) -> str:
        return f"{self.path}/_checkpoints/{name}"

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path_of(path)))

    def has(self, table: str) -> bool:
        """Say whether anything was archived to a table."""
        return self.exists(f"{self.path}/{table}")

    def read(self, table: str) -> DataFrame:
        """Return a table as it is stored, with `queue` its name alone; raise PipelineError where there is none."""
        if not self.has(table):
            raise PipelineError(f"there are no {table} in the lake {self.path}")
        return self.spark.read.schema(_STORED[table] + _FOUND_BY).parquet(f"{self.path}/{table}")

    def add(self, table: str, run: str, batch: int, rows: DataFrame) -> int:
        """Store a batch under its identity; return how many rows that were, 0 where it is there already or empty."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        folder = f"{self.path}/{table}/run={run}/batch={batch:010d}"
        if self.exists(folder):
            return 0
        work = f"{self.path}/_work/{table}-{run}-{batch:010d}"
        seen = Observation()
        parts = f.split("queue", "/")
        stored = (
            rows.observe(seen, f.count(f.lit(1)).alias("rows"))
            .withColumn("project", parts[0])
            .withColumn("queue", parts[1])
            .withColumn("date", f.to_date(_MOMENT[table]))
        )
        writer = stored.write.mode("overwrite").partitionBy(*PARTITIONS).option("compression", "zstd")
        # No empty marker files: some readers take every file for data.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet(work)
        count = int(seen.get["rows"])
        if count:
            self._files.mkdirs(self._path_of(f"{self.path}/{table}/run={run}"))
            if not self._files.rename(self._path_of(work), self._path_of(folder)):
                raise PipelineError(f"can't rename {work} to {folder}")
        else:
            self._files.delete(self._path_of(work), True)
        return count

    def note_gap(self, gap: Gap, run: str, batch: int) -> None:
        """Write down what is missing; the same gap again is the same file."""
        name = f"{gap.queue.replace('/', '-')}-{gap.epoch}-{gap.low}-{gap.high}.json"
        facts = {"queue": gap.queue, "epoch": gap.epoch, "from": gap.low, "to": gap.high, "lost": gap.lost}
        text = json.dumps({**facts, "made_anew": gap.made_anew, "run": run, "batch": batch})
        stream = self._files.create(self._path_of(f"{self.path}/_gaps/{name}"), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def offsets_of(self, checkpoint: str, batch: int) -> dict[str, dict[str, Any]] | None:
        """Return up to where a batch of a query reaches, from its checkpoint; None where it is no longer there."""
        path = self._path_of(f"{checkpoint}/offsets/{batch}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            text = str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        found = json.loads(text.splitlines()[-1])
        return found if isinstance(found, dict) else None


def gaps_between(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[Gap]:
    """Return what was lost between the ends of two batches of a stream of messages."""
    found = []
    for queue, end in after.items():
        start = before.get(queue)
        if start is None or "next" not in end:
            continue
        if start["epoch"] != end["epoch"]:
            found.append(Gap(queue, start["epoch"], start["next"], start["next"], 0, True))
        elif end.get("lost", 0) > start.get("lost", 0):
            low = start["next"] if start["next"] < end["floor"] else start.get("floor", 0)
            found.append(Gap(queue, end["epoch"], low, end["floor"], end["lost"] - start.get("lost", 0), False))
    return found
