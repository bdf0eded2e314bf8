"""`curbstone pipeline compact`: merges the small files of a lake and removes unused files. Without Spark.

It may run concurrently with an archive and with readers, because it is a commit like others, and the files it replaces
are kept for some time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from curbstone.spark import iceberg, jobs
from curbstone.spark.columns import DAY, NESTED, ORDER, TABLES
from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.table import KEEP_HOURS, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

KEEP_HOURS_MIN = 1
"""Younger unreferenced files may belong to a batch under way, and are not removed as leftovers of a killed batch."""
_ARCHIVED = re.compile(r"/part-[0-9a-f]{32}\.parquet$")
"""The names of files that an archive has written. Those of compacted files are longer."""
LOG_HOURS = 30 * 24
"""How long the log keeps versions by default. It keeps replaced files for KEEP_HOURS."""


@dataclass(frozen=True)
class Compacted:
    """The numbers of files in the compaction of a table.

    `small` files became `large` ones; `completed` ones were rewritten, because the log lacked their statistics;
    `forgotten` ones had rows of deleted days; `removed` ones were deleted from the disk.
    """

    table: str
    small: int
    large: int
    completed: int
    forgotten: int
    removed: int

    def __str__(self) -> str:
        text = f"{self.table}: {jobs.quantity(self.small, 'file')} became {self.large:,}"
        if self.completed:
            text += f", {jobs.quantity(self.completed, 'file')} got statistics"
        if self.forgotten:
            text += f", {self.forgotten:,} of earlier days left the table"
        return f"{text}, {self.removed:,} removed from the disk"


def compact(
    lake: str, *, keep_hours: int = KEEP_HOURS, before: date | None = None, sort_by: Sequence[str] = ()
) -> list[Compacted]:
    """Compact all tables of a lake, and return the counts. Rows of days before `before` are deleted.

    With `sort_by`, days that have new files are sorted by these columns, in tables that have them.

    Replaced files are removed after `keep_hours`; for that long, older versions can be read. Raises PipelineError.
    """
    from deltalake.exceptions import DeltaError

    if keep_hours < KEEP_HOURS_MIN:
        raise PipelineError(f"--keep-hours must be at least {KEEP_HOURS_MIN}")
    done = []
    _check_columns(lake, sort_by)
    is_mirrored = iceberg.is_kept(lake)
    for name in TABLES:
        if not Table(lake, name).exists:
            continue
        stored = Table(lake, name)
        table = stored.open()
        jobs.show_status(f"compacting {name}")
        try:
            _keep(table, keep_hours)
            forgotten = 0
            if before is not None:
                forgotten = int(table.delete(f"{DAY} < '{before.isoformat()}'")["num_removed_files"])
            changed = _sorted(table, sort_by) if sort_by else None
            changed = changed or table.optimize.compact()
            completed = _complete(table, name)
            stored.sync()  # before the replaced files are removed
            if is_mirrored:
                iceberg.update(lake, name, keep_hours)
            removed = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            table.create_checkpoint()
            stored.sync()  # before the commits in the checkpoint are removed
            table.cleanup_metadata()
        except DeltaError as error:
            raise PipelineError(f"can't compact {name} of {lake}: {last_line(error)}") from None
        small, large = int(changed["numFilesRemoved"]), int(changed["numFilesAdded"])
        done.append(Compacted(name, small, large, completed, forgotten, len(removed)))
    jobs.clear_status()
    if not done:
        raise PipelineError(f"there is no lake at {lake}")
    return done


def _check_columns(lake: str, columns: Sequence[str]) -> None:
    """Raise PipelineError for a column that no table has."""
    tables = [table for table in (Table(lake, name) for name in TABLES) if table.exists]
    known = {field.name for table in tables for field in table.open().schema().fields} - {DAY, *NESTED}
    for column in columns:
        if tables and column not in known:
            raise PipelineError(f"--sort-by: can't sort by {column!r}; there are: {', '.join(sorted(known))}")


def _sorted(table: DeltaTable, columns: Sequence[str]) -> dict[str, int] | None:
    """Sort the rows of each day that has files of an archive. Return the counts, or None if a column is missing.

    Several columns are interleaved, as a Z-order, so that a query by any of them reads few files.
    """
    import pyarrow as pa

    if not set(columns) <= {field.name for field in table.schema().fields}:
        return None
    facts = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    days = {facts[f"partition.{DAY}"].isoformat() for facts in facts if _ARCHIVED.search(facts["path"])}
    done = {"numFilesRemoved": 0, "numFilesAdded": 0}
    for day in sorted(days):
        changed = table.optimize.z_order(list(columns), partition_filters=[(DAY, "=", day)])
        done = {name: count + int(changed[name]) for name, count in done.items()}
    return done


def _complete(table: DeltaTable, name: str) -> int:
    """Rewrite files whose statistics earlier releases left out of the log. Return how many there were.

    Other readers wrongly skip a file whose statistics are missing. Merged files have all statistics.
    """
    import pyarrow as pa

    incomplete: dict[str, int] = {}
    for facts in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if facts.get("null_count.epoch") is None:
            day = facts[f"partition.{DAY}"].isoformat()
            incomplete[day] = incomplete.get(day, 0) + 1
    for day in sorted(incomplete):
        # Unlike compaction, this also takes a file that is alone in its day.
        table.optimize.z_order([ORDER[name]], partition_filters=[(DAY, "=", day)])
    return sum(incomplete.values())


def _keep(table: DeltaTable, hours: int) -> None:
    """Set how long the log keeps replaced files. Files that are not in the log are removed by their age."""
    wanted = {
        "delta.deletedFileRetentionDuration": f"interval {hours} hours",
        "delta.logRetentionDuration": f"interval {max(hours, LOG_HOURS)} hours",
    }
    if hours > KEEP_HOURS and not wanted.items() <= table.metadata().configuration.items():
        table.alter.set_table_properties(wanted)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser(
        "compact", "Merge the small files of a lake into large ones, and remove old data.", server=False
    )
    parser.add_argument("lake", metavar="LAKE", help="the lake that `archive` fills; it may be running")
    parser.add_argument(
        *("--keep-hours", "-k"),
        type=int,
        default=KEEP_HOURS,
        metavar="N",
        help=f"how many hours to keep replaced files, for readers and earlier versions ({KEEP_HOURS})",
    )
    parser.add_argument(
        "--delete-before",
        type=_day,
        metavar="DAY",
        help="delete the rows of days before this one: 2026-01-31 (in UTC), or 90d for 90 days ago",
    )
    parser.add_argument(
        "--sort-by",
        default="",
        metavar="COLUMNS",
        help="sort the rows of days with new files by these columns, such as key or queue,seq",
    )
    return parser.parse_args(given)


def _day(text: str) -> date:
    """Return the day in a text, which is a date or a number of days ago."""
    if text.endswith("d") and text[:-1].isdigit():
        return datetime.now(UTC).date() - timedelta(days=int(text[:-1]))
    return date.fromisoformat(text)


def _job(known: argparse.Namespace) -> str:
    columns = [name.strip() for name in known.sort_by.split(",") if name.strip()]
    done = compact(known.lake, keep_hours=known.keep_hours, before=known.delete_before, sort_by=columns)
    return "\n".join(str(one) for one in done)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
