"""How Spark fills a lake: a stream whose tasks read queues and write files, and whose rows name those files.

So messages go from the server into Parquet within one Python worker, and Java only sees one row for each file. As rows
of Spark, messages would go through Java and into a second worker, which takes five times the CPU. Spark drops the rows
of a task that failed or whose duplicate was faster, and so it also drops the names of their files. `Lake.add` commits
the files that are named; the others belong to no table, and `compact` removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StringType, StructField, StructType

from curbstone.spark.failure import PipelineError
from curbstone.spark.journal_stream import JournalStreamReader
from curbstone.spark.lake_columns import COLUMNS, JOURNAL
from curbstone.spark.options import ReadOptions, read_options
from curbstone.spark.stream import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "curbstone-lake"

PARTS = StructType(
    [
        StructField("path", StringType()),
        StructField("day", StringType()),
        StructField("size", LongType()),
        StructField("rows", LongType()),
        StructField("stats", StringType()),
    ]
)
"""The columns of a row: the fields of a `Part`."""


class LakeSource(DataSource):
    """`readStream.format("curbstone-lake")`, with the options of `curbstone` and the lake as `path`. For `archive`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return PARTS

    def streamReader(self, schema: StructType) -> MessagesIntoLake | JournalIntoLake:
        options, lake = read_options(self.options, stream=True), self.options["path"]
        if not (options.headers and options.body):
            raise PipelineError("a lake has whole messages: includeHeaders and includeBody are not for archives")
        return JournalIntoLake(options, lake) if options.mode == JOURNAL else MessagesIntoLake(options, lake)


class MessagesIntoLake(StreamReader):
    """Reads messages like any stream of them, but yields the files that its tasks have written."""

    def __init__(self, options: ReadOptions, lake: str) -> None:
        super().__init__(options, _read(options.mode))
        self._lake = lake

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return _stored(super().read(partition), self._lake, self._options.mode)


class JournalIntoLake(JournalStreamReader):
    """Reads the journal, and yields the files that its tasks have written."""

    def __init__(self, options: ReadOptions, lake: str) -> None:
        super().__init__(options, _read(options.mode))
        self._lake = lake

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return _stored(super().read(partition), self._lake, self._options.mode)


def _read(table: str) -> tuple[tuple[str, bool], ...]:
    """Return the columns to read for a table. The project is read as a part of the queue's name."""
    return tuple((name, True) for name in COLUMNS[table] if name != "project")


def _stored(batches: Iterable[pa.RecordBatch], lake: str, table: str) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task to files of a table, and yield a row for each file. Runs on an executor."""
    import pyarrow as pa

    from curbstone.spark.parts import PartWriter, in_project_and_queue
    from curbstone.spark.table import Table

    writer = PartWriter(Table(lake, table).uri, table)
    try:
        for batch in batches:
            if batch.num_rows:
                writer.add(in_project_and_queue(batch))
        parts = writer.close()
    except BaseException:
        writer.drop()
        raise
    if parts:
        yield pa.RecordBatch.from_pylist([asdict(part) for part in parts])
