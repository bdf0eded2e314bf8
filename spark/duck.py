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


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty database with UTC as its time zone."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="curbstone-sql-") as folder:
        opened = duckdb.connect()
        try:
            opened.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '{MEMORY}'; SET temp_directory = '{folder}'")
            yield opened
        finally:
            opened.close()


def first_line(error: Exception) -> str:
    """Return DuckDB's error text without the drawing that shows the place in the query."""
    return str(error).partition("\n\nLINE ")[0]
