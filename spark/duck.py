"""A database in this process, for questions about more than fits into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
"""What does not fit into it is written to the disk, and removed at the end."""


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty database whose times are UTC."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="curbstone-sql-") as folder:
        opened = duckdb.connect()
        try:
            opened.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '{MEMORY}'; SET temp_directory = '{folder}'")
            yield opened
        finally:
            opened.close()


def first_line(error: Exception) -> str:
    """Return DuckDB's words without its drawing of where in the query it is."""
    return str(error).partition("\n\nLINE ")[0]
