"""SQL on archived and queued messages in a program or a notebook::

    import curbstone.sql

    base = curbstone.sql.connect("lake")
    base.sql("SELECT queue, count(*) FROM messages GROUP BY ALL").df()

It needs `pip install 'curbstone[sql]'`, and loads DuckDB and Arrow only when `connect` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


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

    The tables of the lake are `messages`, `journal` and `gaps`. It is read as it is now, or `as_of` a version or a
    time; only the files that a query needs are read. The tables of the server are `queues`, and `queued` with the
    messages that are in these queues now. The server's address and the files are by default those of the command line.
    Raise `curbstone.spark.failure.PipelineError`.
    """
    from curbstone.spark.jobs import SQL_PACKAGES
    from curbstone.spark.options import address_of
    from curbstone.spark.session import check_packages
    from curbstone.spark.sql import Sql

    check_packages(SQL_PACKAGES)
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
