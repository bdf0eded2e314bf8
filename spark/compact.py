"""`curbstone pipeline compact`: the small files of a lake become large ones, and what nothing needs goes; no Spark.

It may run beside an archive and beside readers: it is a commit like others, and what it replaces stays for a while.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from curbstone.spark import jobs
from curbstone.spark.failure import PipelineError, last_line
from curbstone.spark.lake_columns import DAY, TABLES
from curbstone.spark.table import KEEP_HOURS, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

KEEP_HOURS_MIN = 1
"""What a batch under way has written is not yet in the table, and must not look like what is left of a killed one."""
LOG_HOURS = 30 * 24
"""For so long the log tells of versions if nobody says otherwise; of what was replaced it does for KEEP_HOURS."""


@dataclass(frozen=True)
class Compacted:
    """`small` files became `large` ones; `forgotten` files of days before the date, `removed` from the disk."""

    table: str
    small: int
    large: int
    forgotten: int
    removed: int

    def __str__(self) -> str:
        text = f"{self.table}: {jobs.counted(self.small, 'file')} became {self.large:,}"
        if self.forgotten:
            text += f", {self.forgotten:,} of earlier days left the table"
        return f"{text}, {self.removed:,} removed from the disk"


def compact(lake: str, *, keep_hours: int = KEEP_HOURS, before: date | None = None) -> list[Compacted]:
    """Compact all tables of a lake; return what was done. Rows of days before `before` are deleted.

    What is replaced is removed after `keep_hours`, up to which one may look back. Raises PipelineError.
    """
    from deltalake.exceptions import DeltaError

    if keep_hours < KEEP_HOURS_MIN:
        raise PipelineError(f"what was replaced is kept for {KEEP_HOURS_MIN} hour at least")
    done = []
    for name in TABLES:
        if not Table(lake, name).exists:
            continue
        table = Table(lake, name).open()
        jobs.say(f"compacting {name}")
        try:
            _keep(table, keep_hours)
            forgotten = 0
            if before is not None:
                forgotten = int(table.delete(f"{DAY} < '{before.isoformat()}'")["num_removed_files"])
            changed = table.optimize.compact()
            removed = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            table.create_checkpoint()
            table.cleanup_metadata()
        except DeltaError as error:
            raise PipelineError(f"can't compact {name} of {lake}: {last_line(error)}") from None
        small, large = int(changed["numFilesRemoved"]), int(changed["numFilesAdded"])
        done.append(Compacted(name, small, large, forgotten, len(removed)))
    jobs.say_done()
    if not done:
        raise PipelineError(f"there is no lake at {lake}")
    return done


def _keep(table: DeltaTable, hours: int) -> None:
    """Have the log tell of what was replaced for so long: what it does not know is removed by the age of the file."""
    wanted = {
        "delta.deletedFileRetentionDuration": f"interval {hours} hours",
        "delta.logRetentionDuration": f"interval {max(hours, LOG_HOURS)} hours",
    }
    if hours > KEEP_HOURS and not wanted.items() <= table.metadata().configuration.items():
        table.alter.set_table_properties(wanted)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line; ends the process with code 2 where it is wrong."""
    parser = jobs.parser("compact", "Make the small files of a lake large ones, and remove what is old.", server=False)
    parser.add_argument("lake", metavar="LAKE", help="the lake that `archive` fills, also while it does")
    parser.add_argument(
        *("--keep-hours", "-k"),
        type=int,
        default=KEEP_HOURS,
        metavar="N",
        help=f"keep what was replaced for so long, for readers and for looking back ({KEEP_HOURS})",
    )
    parser.add_argument(
        "--delete-before", type=_day, metavar="DAY", help="delete rows of earlier days, as 2026-01-31 (of UTC), or 90d"
    )
    return parser.parse_args(given)


def _day(text: str) -> date:
    """Return a day that is written, or so many days ago."""
    if text.endswith("d") and text[:-1].isdigit():
        return datetime.now(UTC).date() - timedelta(days=int(text[:-1]))
    return date.fromisoformat(text)


def _job(known: argparse.Namespace) -> str:
    done = compact(known.lake, keep_hours=known.keep_hours, before=known.delete_before)
    return "\n".join(str(one) for one in done)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
