"""`curbstone pipeline iceberg`: makes the tables of a lake readable as Iceberg tables, with the same data files.

`iceberg/messages` in the lake becomes an Iceberg table; see `iceberg_table`. The Delta table remains the authoritative
record. Archives and compactions keep the Iceberg tables current once they exist.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from curbstone.spark import delta_log, jobs
from curbstone.spark.columns import TABLES
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import GAPS
from curbstone.spark.session import missing_packages
from curbstone.spark.table import KEEP_HOURS, absolute

FOLDER = "iceberg"
EVERY_S = 60.0
"""How often a running archive updates the tables, at most."""


def is_kept(lake: str) -> bool:
    """Return whether a lake has Iceberg tables. Raise PipelineError if it has, and pyiceberg is missing."""
    from pyarrow import fs

    from curbstone.spark.parts import filesystem

    files, path = filesystem(f"{absolute(lake)}/{FOLDER}")
    found = bool(files.get_file_info(path).type == fs.FileType.Directory)
    if found:
        _check_installed()
    return found


def names_in(lake: str) -> list[str]:
    """Return the names of the tables that a lake has."""
    from deltalake import DeltaTable

    return [name for name in (*TABLES, GAPS) if DeltaTable.is_deltatable(f"{absolute(lake)}/{name}")]


def update(lake: str, name: str, keep_hours: float = KEEP_HOURS) -> int:
    """Update an Iceberg table to the version of the Delta table, and return the version. Raise PipelineError.

    Snapshots older than `keep_hours` are removed, because `compact` may delete their files.
    """
    from deltalake import DeltaTable

    from curbstone.spark import iceberg_table

    uri = f"{absolute(lake)}/{name}"
    delta_log.sync(uri, delta_log.durable(uri))
    delta = DeltaTable(uri)
    iceberg_table.update_table(f"{absolute(lake)}/{FOLDER}/{name}", uri, delta, keep_hours)
    return int(delta.version())


class Mirrors:
    """The Iceberg tables, if any, that a lake's archive keeps current."""

    def __init__(self, lake: str) -> None:
        """Raise PipelineError if there are any, and pyiceberg is missing."""
        self._lake = lake
        self._is_kept = is_kept(lake)
        self._updated_at = -EVERY_S

    def update(self, *, at_once: bool = False) -> None:
        """Update them, unless the last update was less than EVERY_S ago."""
        if self._is_kept and (at_once or time.monotonic() - self._updated_at >= EVERY_S):
            for name in names_in(self._lake):
                update(self._lake, name)
            self._updated_at = time.monotonic()


def _check_installed() -> None:
    if missing_packages(["pyiceberg"]):
        raise PipelineError("pyiceberg not installed; pip install 'curbstone[iceberg]'")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser(
        "iceberg", "Create or update Iceberg tables for a lake, with the same data files.", server=False
    )
    parser.add_argument("lake", metavar="LAKE", help="the lake that `archive` fills; it may be running")
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    _check_installed()
    names = names_in(known.lake)
    if not names:
        raise PipelineError(f"there is no lake at {known.lake}")
    return "\n".join(f"{known.lake}/{FOLDER}/{name}: version {update(known.lake, name)}" for name in names)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
