"""An Iceberg table with the files of a Delta table, in the layout that needs no catalog. Needs pyiceberg.

Its folder has `metadata/vN.metadata.json` for version N of the Delta table, and `version-hint.text` with the newest N.
So a killed process leaves the previous version, a repeated update changes nothing, and two processes that write the
same version write the same rows. On a local disk, all files of a version are synced before the version is readable.

The files have no field ids, so a name mapping connects their columns to the schema. Iceberg derives the partition of a
row from its columns: because the files lack `date`, tables are partitioned by the day of their time.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from curbstone.core.disk import sync_path
from curbstone.spark.columns import DAY, MOMENT, QUEUE
from curbstone.spark.failure import PipelineError
from curbstone.spark.parts import filesystem, text_of

SNAPSHOTS = 100
"""How many snapshots are kept; earlier ones are removed when there are twice as many."""
UNUSED_S = 3600
"""How long unused metadata files are kept for readers that began earlier."""
_DELTA, _VERSION = "curbstone.delta-table", "curbstone.delta-version"
_METADATA = re.compile(r"v(\d+)\.metadata\.json")
_HINT = "version-hint.text"
_EPOCH = date(1970, 1, 1)


def update_table(folder: str, uri: str, delta: DeltaTable, keep_hours: float) -> None:
    """Update the Iceberg table in a folder to the version of a Delta table, which is at `uri`.

    Snapshots older than `keep_hours` are removed.
    """
    home = _Folder(folder)
    table = home.open()
    if table is None or not _continues(table, folder, delta):
        table = home.create(delta)
    elif table.properties[_VERSION] == str(delta.version()):
        home.point_at(table)
        return
    if _commit(table, uri, delta, keep_hours):
        home.clean(table)


class _Files(PyArrowFileIO):
    """Opens files like the other jobs, with the settings for object stores from the environment."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        return fs.LocalFileSystem() if scheme == "file" else filesystem(f"{scheme}://{netloc}")[0]


class _Folder(NoopCatalog):
    """The catalog of one table, whose metadata is in a folder."""

    def __init__(self, uri: str) -> None:
        super().__init__("folder")
        self.uri = uri
        self._files, self._root = filesystem(f"{uri}/metadata")
        self._is_local = isinstance(self._files, fs.LocalFileSystem)

    def versions(self) -> dict[int, str]:
        """Return the names of the files with the table's metadata, by version."""
        names = [info.base_name for info in self._infos()]
        return {int(match[1]): name for name in names if (match := _METADATA.fullmatch(name))}

    def open(self) -> Table | None:
        """Return the table in its newest version, or None if it does not exist."""
        versions = self.versions()
        if not versions:
            return None
        path = f"{self.uri}/metadata/{versions[max(versions)]}"
        return self._table(FromInputFile.table_metadata(_Files().new_input(path)), path)

    def create(self, delta: DeltaTable) -> Table:
        """Return a table without files, which its first commit will write."""
        self._files.create_dir(self._root, recursive=True)
        if self._is_local:
            for parent in list(Path(self._root).parents)[:3]:
                sync_path(parent)
        schema = assign_fresh_schema_ids(self._convert_schema_if_needed(_arrow_schema(delta)))
        spec = PartitionSpec(*_partition_fields(delta, schema))
        properties = {_DELTA: str(delta.metadata().id)}
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, self.uri, properties)
        mapping = metadata.schema().name_mapping.model_dump_json()
        properties[TableProperties.DEFAULT_NAME_MAPPING] = mapping
        return self._table(metadata.model_copy(update={"properties": properties}), "")

    def _table(self, metadata: TableMetadata, path: str) -> Table:
        return Table((self.uri,), metadata, path, _Files(), self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next version of the metadata."""
        metadata = update_table_metadata(table.metadata, updates, metadata_location=table.metadata_location or None)
        version = metadata.properties[_VERSION]
        if self._is_local:
            for path in _files_of(table, metadata.current_snapshot()):
                sync_path(path)
        path = f"{self.uri}/metadata/v{version}.metadata.json"
        self._write(path.rpartition("/")[2], metadata.model_dump_json())
        self._write(_HINT, version)
        return CommitTableResponse(metadata=metadata, metadata_location=path)

    def point_at(self, table: Table) -> None:
        """Record the table's version as the newest, if a killed or slower process has recorded another."""
        version = table.properties[_VERSION]
        if text_of(self._files, f"{self._root}/{_HINT}") != version:
            self._write(_HINT, version)

    def clean(self, table: Table) -> None:
        """Remove files that no snapshot needs, and later versions, which are of another Delta table."""
        version = int(table.properties[_VERSION])
        needed = {path for snapshot in table.snapshots() for path in _files_of(table, snapshot)}
        names = {path.rpartition("/")[2] for path in (*needed, table.metadata_location)} | {_HINT}
        for info in self._infos():
            match = _METADATA.fullmatch(info.base_name)
            is_old = info.mtime_ns < time.time_ns() - UNUSED_S * 1_000_000_000
            if info.base_name not in names and (is_old or (match and int(match[1]) > version)):
                self._files.delete_file(info.path)

    def _infos(self) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return found

    def _write(self, name: str, text: str) -> None:
        """Write a file whole. On a local disk it is synced."""
        path = f"{self._root}/{name}"
        beside = f"{path}.{uuid.uuid4().hex}" if self._is_local else path
        with self._files.open_output_stream(beside) as file:
            file.write(text.encode())
        if self._is_local:
            sync_path(beside)
            os.replace(beside, path)
            sync_path(self._root)


def _continues(table: Table, folder: str, delta: DeltaTable) -> bool:
    """Return whether a table is of this Delta table, in this version or an earlier one.

    It is not if the lake was copied, restored or created again. No snapshot may be older than its predecessor, so the
    table is also created again after the clock has moved back.
    """
    is_same: bool = table.location() == folder and table.properties.get(_DELTA) == str(delta.metadata().id)
    is_past = table.metadata.last_updated_ms <= time.time_ns() // 1_000_000
    return is_same and is_past and int(table.properties[_VERSION]) <= int(delta.version())


def _commit(table: Table, uri: str, delta: DeltaTable, keep_hours: float) -> bool:
    """Commit a version as one snapshot. Return whether earlier snapshots were removed, or there were none."""
    found = pa.table(delta.get_add_actions(flatten=True))
    wanted = {f"{uri}/{unquote(path)}": row for row, path in enumerate(found.column("path").to_pylist())}
    known = _data_files(table)
    new = pa.array([row for path, row in wanted.items() if path not in known], pa.int64())
    added = found.take(new).to_pylist()
    removed = [file for path, file in known.items() if path not in wanted]
    with table.transaction() as change:
        change.set_properties({_VERSION: str(delta.version())})
        with change.update_schema() as columns:
            columns.union_by_name(_arrow_schema(delta))
        if added or removed:
            schema, spec = change.table_metadata.schema(), change.table_metadata.spec()
            snapshot = change.update_snapshot({_VERSION: str(delta.version())})
            with snapshot.overwrite() if removed else snapshot.merge_append() as files:
                for facts in added:
                    files.append_data_file(_data_file(facts, uri, schema, spec))
                for file in removed:
                    files.delete_data_file(file)
        forgotten = _forgotten(change.table_metadata.snapshots[:-1], keep_hours)
        if forgotten:
            with ExpireSnapshots(change) as expired:
                expired.by_ids(forgotten)
    return bool(forgotten) or not known


def _forgotten(earlier: Sequence[Snapshot], keep_hours: float) -> list[int]:
    """Return the ids of the snapshots that are too old, and of the oldest if there are too many."""
    limit_ms = time.time_ns() // 1_000_000 - int(keep_hours * 3_600_000)
    many = len(earlier) - SNAPSHOTS if len(earlier) >= 2 * SNAPSHOTS else 0
    return [one.snapshot_id for place, one in enumerate(earlier) if place < many or one.timestamp_ms < limit_ms]


def _files_of(table: Table, snapshot: Snapshot | None) -> list[str]:
    """Return the files of the metadata that a snapshot needs."""
    if snapshot is None:
        return []
    return [snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))]


def _data_files(table: Table) -> dict[str, DataFile]:
    """Return the data files of a table by path."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def _data_file(facts: Mapping[str, Any], uri: str, schema: Schema, spec: PartitionSpec) -> DataFile:
    """Return a data file from its facts in the Delta log."""
    if facts.get("num_records") is None:
        raise PipelineError(f"the log of {uri} lacks statistics; run `curbstone pipeline compact` once")
    columns = [field for field in schema.fields if field.field_type.is_primitive]
    nulls = {field.field_id: facts.get(f"null_count.{field.name}") for field in columns}
    low = {field: facts.get(f"min.{field.name}") for field in columns}
    high = {field: _rounded_up(facts.get(f"max.{field.name}")) for field in columns}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{uri}/{unquote(facts['path'])}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(facts, field) for field in spec.fields)),
        record_count=facts["num_records"],
        file_size_in_bytes=facts["size_bytes"],
        value_counts={field.field_id: facts["num_records"] for field in columns},
        null_value_counts={name: count for name, count in nulls.items() if count is not None},
        lower_bounds=_bounds(low),
        upper_bounds=_bounds(high),
        spec_id=spec.spec_id,
    )


def _rounded_up(most: Any) -> Any:
    """Return a maximum, rounded up, because the log has times in ms, and some writers round down."""
    return most + timedelta(milliseconds=1) if isinstance(most, datetime) else most


def _bounds(values: Mapping[NestedField, Any]) -> dict[int, bytes]:
    return {field.field_id: to_bytes(field.field_type, value) for field, value in values.items() if value is not None}


def _arrow_schema(delta: DeltaTable) -> pa.Schema:
    """Return the columns of a Delta table that its files have."""
    schema = pa.schema(delta.schema().to_arrow())
    return pa.schema([field for field in schema if field.name != DAY])


def _partition_fields(delta: DeltaTable, schema: Schema) -> list[PartitionField]:
    """Return the partition fields: the queue, if the Delta table is partitioned by it, and the day of its time."""
    names = delta.metadata().partition_columns
    moment = next((name for name in MOMENT.values() if name in schema.column_names), "")
    of = {QUEUE: (QUEUE, IdentityTransform()), DAY: (moment, DayTransform())}
    found = [(name, schema.find_field(of[name][0]).field_id, of[name][1]) for name in names]
    return [
        PartitionField(source_id=source, field_id=PARTITION_FIELD_ID_START + place, transform=transform, name=name)
        for place, (name, source, transform) in enumerate(found)
    ]


def _partition_value(facts: Mapping[str, Any], field: PartitionField) -> Any:
    value = facts[f"partition.{field.name}"]
    return (value - _EPOCH).days if isinstance(value, date) else value
