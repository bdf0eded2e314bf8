"""The classes of Spark's Python data source API, or stand-ins if pyspark is not installed.

The archive uses the streaming source without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
        from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:

        class DataSourceReader:
            """A reader of a batch."""

        class DataSourceStreamReader:
            """A reader of a stream."""

        class SupportsTriggerAvailableNow:
            """A reader that can stop at the present end."""

        class InputPartition:
            """The input of one task."""

        class ReadLimit:
            """The limit of a batch."""

        class ReadMaxRows(ReadLimit):
            """The most rows of a batch."""

            def __init__(self, max_rows: int, **_members: Any) -> None:
                self.max_rows = max_rows


__all__ = (
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
)
