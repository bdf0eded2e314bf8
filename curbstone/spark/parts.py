"""Writes rows to Parquet files of a lake, in a task of Spark or without Spark.

A file has rows of one day (in UTC) and a unique name. It belongs to a table only if a commit adds it (see `table`). So
the files of a task that was killed, or whose duplicate was faster, belong to no table.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from curbstone.spark.arrow import TYPES
from curbstone.spark.columns import COLUMNS, DAY, MOMENT, NESTED, QUEUE

_TEXT_MAX = 128
"""The most characters of a text in the table's log."""
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 250_000
"""The number of rows in a row group."""
_DAY_US = 86_400_000_000


def stored_schema(table: str) -> pa.Schema:
    """Return the columns of a file of a table."""
    types = {**TYPES, "project": pa.string()}
    return pa.schema([pa.field(name, types[name]) for name in COLUMNS[table]])


@dataclass(frozen=True)
class Part:
    """A file: its `path` below the table, and its facts for the table's log.

    `values` are those of the columns that the table may be partitioned by.
    """

    path: str
    values: dict[str, str]
    size: int
    rows: int
    stats: str


def filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and path of a path or an address such as `s3://…`, or Hadoop's `s3a://…`."""
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(re.sub("^s3a://", "s3://", uri))
    return found


def text_of(files: fs.FileSystem, path: str) -> str | None:
    """Return the contents of a small file, or None if it does not exist."""
    if files.get_file_info(path).type != fs.FileType.File:
        return None
    with files.open_input_file(path) as file:
        return str(file.read().decode("utf-8", "replace"))


class PartWriter:
    """Writes rows of one table, a file for each day. Call `close` at the end, or `drop` after an error."""

    def __init__(self, uri: str, table: str, more: Sequence[pa.Field] = (), *, by_queue: bool = False) -> None:
        """`uri` is the absolute path or the address of the table, and `more` are its additional columns.

        With `by_queue`, write a file for each day of each queue; then a batch has rows of one queue.
        """
        self._by_queue = by_queue
        self._files, self._root = filesystem(uri)
        self._table = table
        self._schema = pa.schema([*stored_schema(table), *more])
        self._open: dict[tuple[str, date], _Part] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the stored columns. Missing columns are null."""
        rows = pa.Table.from_batches([batch])
        for column in self._schema:
            if column.name not in batch.schema.names:
                rows = rows.append_column(column, pa.nulls(len(rows), column.type))
        rows = rows.select(self._schema.names).cast(self._schema)
        moments = rows.column(MOMENT[self._table]).cast(pa.int64())
        days = pc.floor(pc.divide(moments.cast(pa.float64()), _DAY_US)).cast(pa.int32()).cast(pa.date32())
        queue = rows.column(QUEUE)[0].as_py() if self._by_queue else ""
        for day in pc.unique(days).to_pylist():
            part = self._open.get((queue, day)) or self._new(queue, day)
            part.add(rows.filter(pc.equal(days, pa.scalar(day, pa.date32()))))

    def close(self) -> list[Part]:
        """Finish all files and return them."""
        return [part.close() for _, part in sorted(self._open.items())]

    def drop(self) -> None:
        """Remove the files that were written."""
        for part in self._open.values():
            part.drop()

    def _new(self, queue: str, day: date) -> _Part:
        folder = f"{QUEUE}={quote(queue, safe='')}/" if queue else ""
        path = f"{folder}{DAY}={day.isoformat()}/part-{uuid.uuid4().hex}.parquet"
        values = {QUEUE: queue, DAY: day.isoformat()}
        self._open[queue, day] = part = _Part(self._files, self._root, path, self._schema, values)
        return part


@dataclass
class _Part:
    """A file that is being written."""

    files: fs.FileSystem
    root: str
    path: str
    schema: pa.Schema
    values: dict[str, str]
    rows: int = 0
    bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._where = f"{self.root}/{self.path}"
        self.files.create_dir(self._where.rpartition("/")[0], recursive=True)
        outlined = [name for name in self.schema.names if name not in ("body", "headers", "groups")]
        self._writer = parquet.ParquetWriter(
            self._where,
            self.schema,
            filesystem=self.files,
            compression="zstd",
            use_dictionary=[name for name in outlined if name not in ("seq", "message_id", "position", "expires")],
            write_statistics=outlined,
        )

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        self.rows += rows.num_rows
        # Statistics of all columns: some readers wrongly skip a file if one is missing.
        for name in (name for name in self.schema.names if name not in NESTED):
            column = rows.column(name)
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if name == "body" or pa.types.is_boolean(column.type):
                continue
            least, most = pc.min_max(column).as_py().values()
            if least is not None:
                known = self.bounds.get(name, (least, most))
                self.bounds[name] = (min(least, known[0]), max(most, known[1]))
        if self._bytes >= _GROUP_BYTES or sum(table.num_rows for table in self._waiting) >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_GROUP_ROWS)
        self._waiting, self._bytes = [], 0

    def close(self) -> Part:
        self._write()
        self._writer.close()
        size = self.files.get_file_info(self._where).size
        return Part(self.path, self.values, size, self.rows, self._stats())

    def drop(self) -> None:
        self._writer.close()
        self.files.delete_file(self._where)

    def _stats(self) -> str:
        """Return the statistics of the rows for the table's log.

        They are the Per-file Statistics of https://github.com/delta-io/delta/blob/master/PROTOCOL.md. Times are in
        milliseconds there and long texts are cut, so maximums are rounded up.
        """
        least = {name: _in_log(low) for name, (low, _) in self.bounds.items()}
        most = {name: _in_log(high, up=True) for name, (_, high) in self.bounds.items()}
        return json.dumps({"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": self.nulls})


def _in_log(value: Any, *, up: bool = False) -> Any:
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return value[:_TEXT_MAX] + "\U0010ffff" * up
    if not isinstance(value, datetime):
        return value.isoformat() if isinstance(value, date) else value
    if up and value.microsecond % 1000:
        value += timedelta(milliseconds=1)
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"


def in_project_and_queue(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with their `queue`, which is `project/queue`, split into two columns."""
    full = batch.column("queue")
    halves = pc.split_pattern(full.cast(pa.string()), "/", max_splits=1)
    columns: Mapping[str, pa.Array] = {
        **dict(zip(batch.schema.names, batch.columns, strict=True)),
        "project": pc.list_element(halves, 0),
        "queue": pc.list_element(halves, 1),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
