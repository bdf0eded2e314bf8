"""`curbstone pipeline upgrade`: converts a lake of an earlier release to tables, batch by batch, without Spark.

Such a lake consists of folders of Parquet files, `run=<query>/batch=<number>/project=…/queue=…/date=…`. Each batch is
stored in the table under the same identity, and then its folder is removed. So the job may be killed and run again, and
the archive continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from curbstone.spark import jobs
from curbstone.spark.columns import TABLES
from curbstone.spark.failure import PipelineError
from curbstone.spark.table import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


def upgrade(lake: str) -> int:
    """Convert all batches of an earlier release, and return their number. No archive may run meanwhile."""
    done = 0
    for name in TABLES:
        table = Table(lake, name, upgrading=True)
        for batch in table.old_batches():
            _take_over(table, batch)
            done += 1
            jobs.show_status(f"{jobs.quantity(done, 'batch')} converted")
        _remove_empty(table)
    jobs.clear_status()
    return done


def _take_over(table: Table, folder: str) -> None:
    from curbstone.spark.parts import PartWriter, filesystem

    run, number = (half.partition("=")[2] for half in folder.split("/"))
    files, root = filesystem(table.uri)
    if not table.has_batch(run, int(number)):
        writer = PartWriter(table.uri, table.name)
        try:
            for batch in _rows(files, f"{root}/{folder}"):
                writer.add(batch)
            parts = writer.close()
        except BaseException:
            writer.drop()
            raise
        if parts:
            known = table.transactions()
            table.commit(parts, {run: int(number)}, known)
    files.delete_dir(f"{root}/{folder}")


def _rows(files: fs.FileSystem, folder: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch, with the columns from the names of their folders."""
    import pyarrow as pa
    from pyarrow import fs, parquet

    found = files.get_file_info(fs.FileSelector(folder, recursive=True))
    for info in sorted(found, key=lambda one: str(one.path)):
        if not info.is_file or info.extension != "parquet":
            continue
        place = dict(part.split("=", 1) for part in info.path[len(folder) :].split("/") if "=" in part)
        with files.open_input_file(info.path) as source:
            for batch in parquet.ParquetFile(source).iter_batches():
                for name in ("project", "queue"):
                    batch = batch.append_column(name, pa.repeat(pa.scalar(unquote(place[name])), batch.num_rows))
                yield batch


def _remove_empty(table: Table) -> None:
    from pyarrow import fs

    from curbstone.spark.parts import filesystem

    files, root = filesystem(table.uri)
    for run in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if run.base_name.startswith("run="):
            files.delete_dir(run.path)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser("upgrade", "Convert a lake that an earlier release wrote.", server=False)
    parser.add_argument("lake", metavar="LAKE", help="the lake; no `archive` may be running on it")
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    tables = [Table(known.lake, name, upgrading=True) for name in TABLES]
    if not any(table.old_batches() for table in tables):
        if not any(table.exists for table in tables):
            raise PipelineError(f"there is no lake at {known.lake}")
        return f"the lake {known.lake} needs no upgrade"
    return f"converted {jobs.quantity(upgrade(known.lake), 'batch')}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.LAKE_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
