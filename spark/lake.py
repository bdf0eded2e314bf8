"""The lake: archived messages and events, in tables in which any reader of Delta or Parquet sees each row once.

::

    <lake>/messages/date=…/part-….parquet          rows, of a day each
    <lake>/messages/_delta_log/…                   which files the table consists of, batch by batch
    <lake>/journal/…                               the same
    <lake>/_gaps/<queue>-<epoch>-<from>-<to>.json  messages that were lost before they could be archived
    <lake>/_checkpoints/…                          where the archive goes on

`table` says how a batch appears in it, completely and once. Names that begin with an underscore have no rows.
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
    """Return the default checkpoint of an archive that reads through this group."""
    return f"{lake.rstrip('/')}/_checkpoints/{group}"


class Lake:
    """A directory that this process and Spark's executors can reach: a path, or an address such as `s3://…`.

    Tables are written without Spark's file systems. Checkpoints are written by Spark, with its file systems.
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
        """Return the local path of a place in the lake, or None if it is not on this machine. Raise PipelineError."""
        try:
            files = self._path_of(path).getFileSystem(self._conf)
        except Exception as error:
            advice = "give --checkpoint a place that it can write to, or Spark the jars of that store"
            raise PipelineError(f"Spark can't keep a checkpoint at {path}: {last_line(error)}; {advice}") from None
        uri = self._path_of(path).makeQualified(files.getUri(), files.getWorkingDirectory()).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None

    def table(self, name: str) -> Table:
        """Return one of the lake's tables."""
        return Table(self.path, name)

    def add(self, table: str, run: str, batch: int, parts: DataFrame, check: Callable[[], None]) -> int:
        """Store a batch under its identity. Return how many rows it has, or 0 if it is stored already.

        `parts` are rows of a `LakeSource`; its tasks write their files when the rows are collected. `check` is called
        before that, and may raise.
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
        """Write a small file, replacing an existing one."""
        where = self._path_of(path)
        stream = where.getFileSystem(self._conf).create(where, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def text(self, path: str) -> str | None:
        """Return the contents of a small file, or None if it does not exist."""
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
        """Return the end offset of a batch of a query from its checkpoint, or None if it is no longer there."""
        text = self.text(f"{checkpoint}/offsets/{batch}")
        found = json.loads(text.splitlines()[-1]) if text else None
        return found if isinstance(found, dict) else None
