"""The lake: Parquet files in directories named by what they are, so that any reader of Parquet sees each row once.

::

    <lake>/messages/run=<query id>/batch=<number>/project=…/queue=…/date=…/part-….parquet
    <lake>/journal/…                              the same
    <lake>/_gaps/<queue>-<epoch>-<from>-<to>.json  messages that were lost before they could be archived
    <lake>/_checkpoints/…                         where the archive goes on
    <lake>/_work/…                                a batch that is being written, once for each attempt

A batch appears whole, by a rename to a name that must not be there yet, and never changes: a batch that is run again
finds its directory and writes nothing, and of two attempts at once the second fails. The run's id is part of the path
because a new checkpoint counts its batches from 0 again. Readers leave out names that begin with an underscore.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.gaps import Gap

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


def checkpoint_in(lake: str, group: str) -> str:
    """Return where an archive that reads through a group goes on, if nothing else is said."""
    return f"{lake.rstrip('/')}/_checkpoints/{group}"


class Lake:
    """A directory that Spark can reach: a path, or an address such as `hdfs://…`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path.rstrip("/")
        if not hasattr(spark, "_jvm"):
            raise PipelineError("a lake needs Spark in this process; Spark Connect can read, write and stream queues")
        jvm: Any = spark.sparkContext._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path_of(self.path).getFileSystem(self._conf)
        self._java = jvm
        self._gateway: Any = spark.sparkContext._gateway

    def local(self, path: str) -> Path | None:
        """Return where a path is on this machine; None where it is elsewhere."""
        files = self._path_of(path).getFileSystem(self._conf)
        uri = self._path_of(path).makeQualified(files.getUri(), files.getWorkingDirectory()).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None

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

    def add(self, table: str, run: str, batch: int, rows: DataFrame, check: Callable[[], None]) -> int:
        """Store a batch under its identity; return how many rows that were, 0 where it is there already or empty.

        `check` is called before it appears, and may raise.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        folder = f"{self.path}/{table}/run={run}/batch={batch:010d}"
        attempts = f"{self.path}/_work/{table}-{run}-{batch:010d}"
        if self.exists(folder):
            self._files.delete(self._path_of(attempts), True)  # those of processes that were killed
            return 0
        work = f"{attempts}/{uuid.uuid4().hex}"
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
            check()
            self._publish(work, folder)
        self._files.delete(self._path_of(attempts), True)
        return count

    def _publish(self, work: str, folder: str) -> None:
        """Give a directory the name of its batch, in one step; raise PipelineError where there is one already."""
        self._files.mkdirs(self._path_of(folder).getParent())
        source, target = self.local(work), self.local(folder)
        try:
            if source is not None and target is not None:
                os.rename(source, target)  # Hadoop would move it into a directory that is there
            else:
                no_overwriting = self._gateway.new_array(getattr(self._java.org.apache.hadoop.fs, "Options$Rename"), 0)
                context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(self._files.getUri(), self._conf)
                context.rename(self._path_of(work), self._path_of(folder), no_overwriting)
        except Exception as error:
            if self.exists(folder):
                raise PipelineError(f"another archive has stored {folder} meanwhile; this one ends") from None
            raise PipelineError(f"can't rename {work} to {folder}: {last_line(error)}") from None

    def note_gap(self, gap: Gap, run: str, batch: int) -> None:
        """Write down what is missing; the same gap again is the same file."""
        name = f"{gap.queue.replace('/', '-')}-{gap.epoch}-{gap.low}-{gap.high or 'end'}.json"
        facts = {"queue": gap.queue, "epoch": gap.epoch, "from": gap.low, "to": gap.high, "lost": gap.lost}
        text = json.dumps({**facts, "at_least": gap.at_least, "why": gap.why, "run": run, "batch": batch})
        self.write(f"{self.path}/_gaps/{name}", text)

    def write(self, path: str, text: str) -> None:
        """Write a small file, instead of the one that is there."""
        where = self._path_of(path)
        stream = where.getFileSystem(self._conf).create(where, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def text(self, path: str) -> str | None:
        """Return what is in a small file; None where it is not there."""
        where = self._path_of(path)
        files = where.getFileSystem(self._conf)
        if not files.exists(where):
            return None
        stream = files.open(where)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def offsets_of(self, checkpoint: str, batch: int) -> dict[str, dict[str, Any]] | None:
        """Return up to where a batch of a query reaches, from its checkpoint; None where it is no longer there."""
        text = self.text(f"{checkpoint}/offsets/{batch}")
        found = json.loads(text.splitlines()[-1]) if text else None
        return found if isinstance(found, dict) else None
