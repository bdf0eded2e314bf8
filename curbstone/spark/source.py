"""The data source `curbstone`, Spark's entry point. It checks options and columns, on the driver.

Spark creates these objects often, in short-lived processes for a single call, so the constructor does no work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from curbstone.spark import schemas
from curbstone.spark.columns import Columns
from curbstone.spark.failure import PipelineError
from curbstone.spark.options import CORES_VARIABLE, JOURNAL, ReadOptions, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from curbstone.spark.batch import BatchReader
    from curbstone.spark.journal_stream import JournalStreamReader
    from curbstone.spark.stream import StreamReader
    from curbstone.spark.writing import BatchWriter, StreamWriter

NAME = "curbstone"


class CurbstoneDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("curbstone")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _columns(read_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        from curbstone.spark.batch import BatchReader

        options = read_options(self.options, stream=False)
        return BatchReader(options, _names(options, schema))

    def streamReader(self, schema: StructType) -> StreamReader | JournalStreamReader:
        options = read_options(self.options, stream=True)
        names = _names(options, schema)
        if options.mode == JOURNAL:
            from curbstone.spark.journal_stream import JournalStreamReader

            return JournalStreamReader(options, names)
        from curbstone.spark.stream import StreamReader

        return StreamReader(options, names)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from curbstone.spark.writing import BatchWriter

        if overwrite:
            raise PipelineError('a queue can\'t be overwritten; write with .mode("append")')
        options = write_options(self.options, stream=False)
        schemas.check_written(schema, queue_given=bool(options.queue))
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from curbstone.spark.writing import StreamWriter

        if overwrite:
            raise PipelineError('a queue can\'t be overwritten; write with .outputMode("append")')
        options = write_options(self.options, stream=True)
        schemas.check_written(schema, queue_given=bool(options.queue))
        return StreamWriter(options)


def register(spark: SparkSession, source: type[DataSource] = CurbstoneDataSource) -> None:
    """Register a `source` with a session, so that `format("curbstone")` works even if Spark can't find it by itself.

    If no Python is configured for Spark on this machine, use that of this process. Spark would use `python3` from the
    PATH, which may not have Curbstone. The number of cores is passed on as well, so that a large batch becomes one task
    for each core.
    """
    if hasattr(spark, "_jvm"):  # a client of Spark Connect has none
        context = spark.sparkContext
        is_here = context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ
        if is_here and not context.getConf().get("spark.pyspark.python"):
            context.pythonExec = sys.executable
        context.environment[CORES_VARIABLE] = str(context.defaultParallelism)
    spark.dataSource.register(source)


def _columns(options: ReadOptions) -> StructType:
    """Return the columns for these options."""
    if options.mode == JOURNAL:
        return schemas.JOURNAL
    left_out = {name for name, wanted in (("headers", options.headers), ("body", options.body)) if not wanted}
    return StructType([field for field in schemas.MESSAGES.fields if field.name not in left_out])


def _names(options: ReadOptions, schema: StructType) -> Columns:
    fields = schemas.projected(_columns(options), schema).fields
    return tuple((field.name, field.nullable) for field in fields)
