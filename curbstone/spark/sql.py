"""SQL on archived and queued messages, in this process, by DuckDB.

The tables of a lake are `messages`, `journal` and `gaps`. Those of a server are `queues` and `queued`, the messages
that are in its queues now, with the columns of `messages`. Reading does not take messages. Queued messages are fetched
page by page when a query names them; DuckDB writes data that do not fit into memory to the disk.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.spark.client import Address, Client
from curbstone.spark.columns import JOURNAL, MESSAGES, TABLES
from curbstone.spark.failure import PipelineError
from curbstone.spark.gaps import GAPS, gap_table
from curbstone.spark.options import address_of
from curbstone.spark.session import check_packages
from curbstone.spark.table import Table

if TYPE_CHECKING:
    import duckdb

QUEUED, QUEUES = "queued", "queues"
ABOUT = {
    MESSAGES: "the messages in the lake",
    JOURNAL: "the events of messages, from the lake",
    GAPS: "messages that were lost before they could be archived",
    QUEUES: "the server's queues and their numbers of messages",
    QUEUED: "the messages that are in the server's queues now",
}
ROWS_AT_ONCE = 1000
MEMORY = "1GB"
"""The limit of memory. More data are written to the disk temporarily."""

_NO_FILES = "SET enable_external_access = false; SET python_enable_replacements = false; SET lock_configuration = true"
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)


@contextmanager
def database(*, allow_files: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty database with UTC as its time zone.

    Without `allow_files`, queries reach only registered tables: no files except their own temporary ones, no network,
    no extensions, no variables of this process, and no settings that would change this.
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


class Sql:
    """A database of a lake, of a server, or of both. `close` it at the end."""

    def __init__(
        self,
        *,
        lake: str = "",
        as_of: str = "",
        server: Address | None = None,
        queues: Sequence[str] = (),
        project: str = "default",
        allow_files: bool = False,
        base: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        """`as_of` selects the lake at a version (a number) or a time. Without `queues`, all of `project` are used.

        With `allow_files` a query may read and write files. `base` is an existing database to use.
        """
        self._lake = lake
        self._as_of: int | str | None = int(as_of) if as_of.isdecimal() else as_of or None
        self._server = Client(server) if server else None
        self._queues = queues
        self._project = project
        self._made: set[str] = set()
        self._closing = ExitStack()
        self._database = base or self._closing.enter_context(database(allow_files=allow_files))

    def __enter__(self) -> Sql:
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()
        if self._server:
            self._server.close()

    def run(self, query: str) -> tuple[list[str], Iterator[list[Any]]]:
        """Return the names of the columns, and the rows. Raise PipelineError with DuckDB's own text."""
        import duckdb

        if _SHOW_TABLES.fullmatch(query):
            return ["name", "about"], iter([[name, ABOUT[name]] for name in self.names()])
        for name in ABOUT:
            if name not in self._made and re.search(rf"\b{name}\b", query, re.IGNORECASE):
                self.make(name)
        try:
            found: duckdb.DuckDBPyRelation | None = self._database.sql(query)
        except duckdb.PermissionException as error:
            raise PipelineError(f"SQL: {first_line(error)}; --allow-files lets a query read and write files") from None
        except duckdb.Error as error:
            raise PipelineError(f"SQL: {first_line(error)}") from None
        if found is None:
            return [], iter(())
        return list(found.columns), self._rows(found)

    def _rows(self, found: duckdb.DuckDBPyRelation) -> Iterator[list[Any]]:
        import duckdb

        try:
            for batch in found.to_arrow_reader(ROWS_AT_ONCE):
                columns = [column.to_pylist() for column in batch.columns]
                yield from map(list, zip(*columns, strict=True))
        except duckdb.Error as error:
            raise PipelineError(f"SQL: {first_line(error)}") from None

    def names(self) -> list[str]:
        """Return the names of the existing tables. Raise PipelineError if the lake does not exist."""
        found = [name for name in TABLES if self._lake and Table(self._lake, name).exists]
        if self._lake:
            if not found:
                raise Table(self._lake, MESSAGES).missing_error()
            found.append(GAPS)
        return found + ([QUEUES, QUEUED] if self._server else [])

    def make(self, name: str) -> None:
        """Register a table with the database. Raise PipelineError."""
        self._made.add(name)
        if name in (QUEUED, QUEUES):
            if self._server is None:
                raise PipelineError(f"table {name} is on a server: name it with --server")
            from curbstone.spark import live

            if name == QUEUES:
                self._database.register(name, live.counts(self._server, self._project, self._queues))
                return
            plain = not self._lake or Table(self._lake, MESSAGES).plain_headers
            # Copied, because a generator can be read only once and a query may name the table twice.
            self._database.register(
                "fetched", live.messages(self._server, self._project, self._queues, plain_headers=plain)
            )
            self._database.execute(f"CREATE TEMP TABLE {QUEUED} AS SELECT * FROM fetched")
            self._database.unregister("fetched")
            return
        if not self._lake:
            raise PipelineError(f"table {name} is in a lake: name it with --lake")
        if name == GAPS:
            self._database.register(name, gap_table(self._lake))
        else:
            self._database.register(name, Table(self._lake, name).dataset(self._as_of))


def connect(
    lake: str | Path = "",
    *,
    as_of: str | int = "",
    server: str = "",
    queues: Sequence[str] = (),
    project: str = "",
    token_file: str = "",
    ca_file: str = "",
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with the tables of a lake, and of a server if `queues` or a `project` are named.

    The tables of the lake are `messages`, `journal` and `gaps`, in the current state, or `as_of` a version or a time;
    only the files that a query needs are read. The tables of the server are `queues`, and `queued` with the messages
    that are in these queues now. The server's address and the files are by default those of the command line. Raise
    `curbstone.spark.failure.PipelineError`.
    """
    check_packages(("deltalake", "pyarrow", "duckdb"))
    import duckdb

    base = duckdb.connect()
    try:
        base.execute("SET TimeZone = 'UTC'")
        address = address_of(server, token_file, ca_file) if queues or project else None
        of_server = project or "default"
        with Sql(
            lake=str(lake), as_of=str(as_of), server=address, queues=queues, project=of_server, base=base
        ) as tables:
            for name in tables.names():
                tables.make(name)
    except BaseException:
        base.close()
        raise
    return base
