"""A table of a lake: Parquet files, and a Delta log that lists the files of the table.

A batch is added by one commit, which also sets the positions of its queues (see `positions`). If two processes add the
same messages, the second commit is refused. All readers of Delta tables see each row once, at any time, without Spark.
`files` is for readers of plain Parquet. The format is https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from curbstone.spark import delta_log
from curbstone.spark.columns import DAY, JOURNAL, MESSAGES, MOMENT, QUEUE
from curbstone.spark.failure import PipelineError
from curbstone.spark.options import moment_ms

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset
    from deltalake import DeltaTable

    from curbstone.spark.parts import Part

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OLD_BATCHES = "run="
_PLAIN = "Archived by Curbstone. Headers have the names that clients gave them."
COMMITS_MAX = 3
KEEP_HOURS = 7 * 24
"""How long replaced files are kept, for readers that began earlier and for earlier versions."""


def absolute(path: str) -> str:
    """Return the place of a lake in a form that is independent of the process."""
    return path.rstrip("/") if _ADDRESS.match(path) else str(Path(path.removeprefix("file:")).absolute())


def day_of(time_ms: int) -> date:
    """Return the day of a time, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


class Table:
    """The table `name` of a lake. It need not exist yet."""

    DESCRIPTION = _PLAIN
    """The description of a new table."""

    def __init__(self, lake: str, name: str, *, upgrading: bool = False) -> None:
        """With `upgrading`, files of an earlier release are being converted; otherwise they are an error."""
        self.name = name
        self._upgrading = upgrading
        self.lake = absolute(lake)
        self.uri = f"{self.lake}/{name}"
        self._synced = -1
        self.more: Sequence[pyarrow.Field] = ()
        """Additional columns of files that are committed from now on."""
        self._partition: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Return whether anything was stored. Raise PipelineError for files of an earlier release."""
        from deltalake import DeltaTable

        if not self._upgrading and self.old_batches():
            advice = f"run `curbstone pipeline upgrade {self.lake}` once"
            raise PipelineError(f"the lake {self.lake} was written by an earlier release: {advice}")
        return bool(DeltaTable.is_deltatable(self.uri))

    @property
    def plain_headers(self) -> bool:
        """Return whether headers have clients' own names. In tables of earlier releases they do not."""
        return not self.exists or self.open().metadata().description == _PLAIN

    @property
    def partition(self) -> tuple[str, ...]:
        """Return the columns of the table's present or future partitions."""
        if not self._partition:
            self._partition = tuple(self.open().metadata().partition_columns) if self.exists else (DAY,)
        return self._partition

    def partition_by_queue(self) -> None:
        """Also partition a new table by queue. Raise PipelineError if the table exists without this partition."""
        if not self.exists:
            self._partition = (QUEUE, DAY)
        elif QUEUE not in self.partition:
            text = f"the lake {self.lake} is partitioned by date; only a new lake can be partitioned by queue"
            raise PipelineError(text)

    def missing_error(self) -> PipelineError:
        """Return the error for a table that does not exist."""
        verb = "is" if self.name == JOURNAL else "are"
        return PipelineError(f"there {verb} no {self.name} in the lake {self.lake}")

    def old_batches(self) -> list[str]:
        """Return the folders of batches that the first release wrote below the table, in order."""
        from pyarrow import fs

        from curbstone.spark.parts import filesystem

        files, root = filesystem(self.uri)
        found: list[str] = []
        for run in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            if run.base_name.startswith(_OLD_BATCHES):
                found += [
                    f"{run.base_name}/{batch.base_name}" for batch in files.get_file_info(fs.FileSelector(run.path))
                ]
        return sorted(found)

    def open(self, version: int | str | None = None) -> DeltaTable:
        """Return the table, or its state as of a version or a time. Raise PipelineError if it does not exist."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if not self.exists:
            raise self.missing_error()
        table = DeltaTable(self.uri)
        if version is not None:
            try:
                table.load_as_version(version)
            except (DeltaError, ValueError) as error:
                raise PipelineError(f"the lake {self.lake} has no version {version}: {error}") from None
            if isinstance(version, str):
                began_ms = table.history(1)[0].get("timestamp", 0)
                if moment_ms(version, "time") < began_ms:
                    began = datetime.fromtimestamp(began_ms / 1000, UTC).isoformat(timespec="milliseconds")
                    raise PipelineError(f"the lake {self.lake} has nothing as of {version}: it begins at {began}")
        return table

    def has_batch(self, run: str, batch: int) -> bool:
        """Return whether a batch of a query, as named by earlier releases, was stored."""
        last = self.open().transaction_version(run) if self.exists else None
        return last is not None and last >= batch

    def transactions(self) -> dict[str, int]:
        """Return the last version of each application transaction of the table."""
        return delta_log.transactions(self.uri) if self.exists else {}

    def commit(self, parts: Sequence[Part], sets: Mapping[str, int], were: Mapping[str, int]) -> None:
        """Add files and set application transactions, all or nothing; on a local disk, sync before returning.

        `were` are their expected present versions. Raise PipelineError, and change nothing, if they differ, because
        another process has added rows meanwhile.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        self._check_files(parts)
        for attempt in range(COMMITS_MAX):
            table = self.open() if self.exists else None
            if any((table.transaction_version(name) if table else None) != were.get(name) for name in sets):
                raise PipelineError(f"another archive has stored these messages in {self.uri}; this one ends")
            try:
                self._commit(table, sets, parts)
            except (CommitFailedError, DeltaError) as error:
                # If two processes create the table or add columns to it, the later one fails, retries and succeeds.
                if attempt + 1 == COMMITS_MAX:
                    raise PipelineError(f"can't write to {self.uri}: {error}") from None
                continue
            self.sync()
            return

    def _check_files(self, parts: Sequence[Part]) -> None:
        """Raise PipelineError if files are gone. `compact` with a clock far ahead removes them as leftovers."""
        from pyarrow import fs

        from curbstone.spark.parts import filesystem

        files, root = filesystem(self.uri)
        for info in files.get_file_info([f"{root}/{part.path}" for part in parts]):
            if info.type != fs.FileType.File:
                advice = "a compaction with a wrong clock removes new files; correct the clock, and run this again"
                raise PipelineError(f"the file {info.path} of this batch is gone: {advice}")

    def sync(self) -> None:
        """Sync everything of all writers on a local disk that no earlier call has synced."""
        self._synced = delta_log.sync(self.uri, max(self._synced, delta_log.durable(self.uri)))

    def _commit(self, table: DeltaTable | None, sets: Mapping[str, int], parts: Sequence[Part]) -> None:
        """Commit to the last seen state of the table (None if it did not exist). Raise the errors of deltalake."""
        import pyarrow as pa
        from deltalake import CommitProperties, PostCommitHookProperties, Schema, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        from curbstone.spark.parts import filesystem

        now_ms = time.time_ns() // 1_000_000
        adds = [
            AddAction(
                path=part.path,  # encoded by deltalake
                size=part.size,
                partition_values={name: part.values[name] for name in self.partition},
                modification_time=now_ms,
                data_change=True,
                stats=part.stats,
            )
            for part in parts
        ]
        whose = CommitProperties(
            custom_metadata={delta_log.SYNCED: str(self._synced)},
            app_transactions=[Transaction(name, number) for name, number in sets.items()],
        )
        # `compact` removes old commits, after it has synced the checkpoint with their contents.
        hook = PostCommitHookProperties(cleanup_expired_logs=False)
        schema = Schema.from_arrow(pa.schema([*self.arrow_schema(table), *self._new(table)]))
        if table is None:
            files, root = filesystem(self.uri)
            files.create_dir(root, recursive=True)
            # deltalake would retry a concurrent creation as version 1, and add the same rows.
            whose.max_commit_retries = 0
            create_table_with_add_actions(
                self.uri,
                schema,
                adds,
                "error",
                list(self.partition),
                name=self.name,
                description=self.DESCRIPTION,
                commit_properties=whose,
                post_commithook_properties=hook,
            )
            return
        known = {field.name for field in table.schema().fields}
        if added := [field for field in schema.fields if field.name not in known]:
            table.alter.add_columns(added)
        table.create_write_transaction(
            adds,
            "append",
            table.schema(),
            list(self.partition),
            commit_properties=whose,
            post_commithook_properties=hook,
        )

    def typed(self, table: DeltaTable | None = None) -> dict[str, pyarrow.Field]:
        """Return the typed columns of the table, by name; see `typed`."""
        import pyarrow as pa

        from curbstone.spark.parts import stored_schema

        if table is None and not self.exists:
            return {}
        known = {*stored_schema(self.name).names, DAY}
        found = pa.schema((table or self.open()).schema().to_arrow())
        return {field.name: _as_written(field) for field in found if field.name not in known}

    def arrow_schema(self, table: DeltaTable | None = None) -> pyarrow.Schema:
        """Return all columns, including the partition column."""
        import pyarrow as pa

        from curbstone.spark.parts import stored_schema

        return pa.schema([*stored_schema(self.name), pa.field(DAY, pa.date32()), *self.typed(table).values()])

    def _new(self, table: DeltaTable | None) -> list[pyarrow.Field]:
        """Return the columns of `more` that the table does not have."""
        known = self.typed(table) if table is not None else {}
        return [field for field in self.more if field.name not in known]

    def dataset(self, version: int | str | None = None) -> pyarrow.dataset.Dataset:
        """Return the rows as of a version, as Arrow. Only present statistics exclude a file.

        `DeltaTable.to_pyarrow_dataset` wrongly excludes a file that lacks a statistic.
        """
        import pyarrow as pa
        from pyarrow import dataset

        from curbstone.spark.parts import filesystem

        files, root = filesystem(self.uri)
        table, form = self.open(version), dataset.ParquetFileFormat()
        schema = self.arrow_schema(table)
        found = table.get_add_actions(flatten=True)
        never_null = ("project", "queue", MOMENT[self.name], *(("seq",) if self.name == MESSAGES else ()))
        fragments = [
            form.make_fragment(f"{root}/{unquote(facts['path'])}", files, _guarantee(facts, schema, never_null))
            for facts in pa.table(found).to_pylist()
        ]
        return dataset.FileSystemDataset(fragments, schema, form, files)

    def files(self, *, version: int | str | None = None) -> list[str]:
        """Return the addresses of the table's files, for readers of plain Parquet."""
        import pyarrow as pa

        table = self.open(version)
        if _ADDRESS.match(self.uri):
            found: list[str] = table.file_uris()
            return found
        return [f"{self.uri}/{unquote(path)}" for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


def _as_written(field: pyarrow.Field) -> pyarrow.Field:
    """Return a column with the type that this package writes, from the type of the log's reader."""
    import pyarrow as pa

    kinds = {"string_view": pa.string(), "large_string": pa.string()}
    return pa.field(field.name, kinds.get(str(field.type), field.type), field.nullable)


def _guarantee(facts: Mapping[str, Any], schema: pyarrow.Schema, never_null: Sequence[str]) -> Any:
    """Return a condition, from the log, that all rows of a file meet: its day, and the bounds of each column.

    Bounds do not cover null, so they are used only for columns without nulls.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.field(DAY) == pa.scalar(facts[f"partition.{DAY}"], pa.date32())
    if f"partition.{QUEUE}" in facts:
        known &= pc.field(QUEUE) == facts[f"partition.{QUEUE}"]
    for column in schema:
        least, most = facts.get(f"min.{column.name}"), facts.get(f"max.{column.name}")
        has_null = column.name not in never_null and facts.get(f"null_count.{column.name}") != 0
        if least is None or most is None or has_null:
            continue
        if isinstance(most, datetime):
            most += timedelta(milliseconds=1)  # the log has milliseconds, and some writers round down
        known &= pc.field(column.name) >= pa.scalar(least, column.type)
        known &= pc.field(column.name) <= pa.scalar(most, column.type)
    return known
