"""How Spark writes into a lake: each task writes its files, the driver commits those of the tasks that count."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from curbstone.spark.failure import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from curbstone.spark.parts import Part

NAME = "curbstone-lake"


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    parts: tuple[Part, ...]


class LakeSink(DataSource):
    """`.write.format("curbstone-lake")` with the options `path`, `table`, `run` and `batch`, for `Lake.add` alone."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        raise PipelineError("a lake is read by `Lake.read`, or as a Delta table")

    def writer(self, schema: StructType, overwrite: bool) -> LakeWriter:
        options = self.options
        return LakeWriter(options["path"], options["table"], options["run"], int(options["batch"]))


class LakeWriter(DataSourceArrowWriter):
    """Stores one batch of a query, or nothing."""

    def __init__(self, lake: str, table: str, run: str, batch: int) -> None:
        self._lake = lake
        self._table = table
        self._run = run
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; runs on an executor."""
        from curbstone.spark.parts import PartWriter, in_project_and_queue
        from curbstone.spark.table import Table

        writer = PartWriter(Table(self._lake, self._table).uri, self._table)
        try:
            for batch in iterator:
                if batch.num_rows:
                    writer.add(in_project_and_queue(batch))
            return Written(tuple(writer.close()))
        except BaseException:
            writer.drop()
            raise

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Add the files to the table, as one commit; runs on the driver. Nothing where there are no rows."""
        from curbstone.spark.table import Table

        parts = self._parts(messages)
        if parts:
            Table(self._lake, self._table).commit(self._run, self._batch, parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks that had finished."""
        from curbstone.spark.parts import filesystem
        from curbstone.spark.table import Table

        files, root = filesystem(Table(self._lake, self._table).uri)
        for part in self._parts(messages):
            files.delete_file(f"{root}/{part.path}")

    @staticmethod
    def _parts(messages: list[WriterCommitMessage | None]) -> list[Part]:
        return [part for message in messages if isinstance(message, Written) for part in message.parts]
