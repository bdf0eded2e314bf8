"""A DuckDB database in this process, for queries over more data than fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
"""The limit of memory. More data are written to the disk, and removed at the end."""


_NO_FILES = "SET enable_external_access = false; SET python_enable_replacements = false; SET lock_configuration = true"


@contextmanager
def database(*, allow_files: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty database with UTC as its time zone.

    Without `allow_files`, queries reach only registered tables: no file but their own temporary ones, no network, no
    extension, no variable of this process, and no setting that would change this.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="curbstone-sql-") as folder:
        opened = duckdb.connect()
        try:
            opened.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '{MEMORY}'; SET temp_directory = '{folder}'")
            if not allow_files:
                opened.execute(_NO_FILES)
            yield opened
        finally:
            opened.close()


def first_line(error: Exception) -> str:
    """Return DuckDB's error text without the drawing that shows the place in the query."""
    return str(error).partition("\n\nLINE ")[0]
