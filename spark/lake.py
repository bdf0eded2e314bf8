"""The lake: what was archived, as tables that any reader of Delta or Parquet sees each row of once.

::

    <lake>/messages/date=…/part-….parquet          rows, of a day each
    <lake>/messages/_delta_log/…                   which files the table consists of, batch by batch
    <lake>/journal/…                               the same
    <lake>/_gaps/<queue>-<epoch>-<from>-<to>.json  messages that were lost before they could be archived
    <lake>/_checkpoints/…                          where the archive goes on

How a batch appears, whole and once, is in `table`. Names that begin with an underscore are no rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.table import Table, absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def checkpoint_in(lake: str, group: str) -> str:
    """Return where an archive that reads through a group goes on, if nothing else is said."""
    return f"{lake.rstrip('/')}/_checkpoints/{group}"


class Lake:
    """A directory that this process and Spark's executors can reach: a path, or an address such as `s3://…`.

    Tables are written without Spark's file systems; a checkpoint is Spark's, and is where these lead.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = absolute(path)
        if not hasattr(spark, "_jvm"):
            raise PipelineError("a lake needs Spark in this process; Spark Connect can read, write and stream queues")
        jvm: Any = spark.sparkContext._jvm
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._java = jvm

    def local(self, path: str) -> Path | None:
        """Return where a path is on this machine; None where it is elsewhere; raise PipelineError."""
        try:
            files = self._path_of(path).getFileSystem(self._conf)
        except Exception as error:
            advice = "give --checkpoint a place that it can write to, or Spark the jars of that store"
            raise PipelineError(f"Spark can't keep a checkpoint at {path}: {last_line(error)}; {advice}") from None
        uri = self._path_of(path).makeQualified(files.getUri(), files.getWorkingDirectory()).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None

    def table(self, name: str) -> Table:
        """Return one of its tables."""
        return Table(self.path, name)

    def add(self, table: str, run: str, batch: int, parts: DataFrame, check: Callable[[], None]) -> int:
        """Store a batch under its identity; return how many rows that were, 0 where it is there already or empty.

        `parts` are rows of a `LakeSource`, whose files are written when they are asked for. `check` is called before
        that, and may raise.
        """
        from curbstone.spark.parts import Part

        if self.table(table).has_batch(run, batch):
            return 0
        check()
        try:
            written = [Part(**row.asDict()) for row in parts.collect()]
        except Exception as error:
            raise PipelineError(last_line(error)) from None
        if written:
            self.table(table).commit(run, batch, written)
        return sum(part.rows for part in written)

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
