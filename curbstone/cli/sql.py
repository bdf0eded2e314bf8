"""`curbstone sql`: queries a lake and the queues of a server."""

from __future__ import annotations

import base64
import csv
import datetime
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from curbstone.cli.output import console, json_text, note, print_json, printable, shown, table
from curbstone.exit_codes import FAILED, WRONG, CommandFailed

ROWS_SHOWN = 1000
"""The most rows in a table, which is for people to look at. JSON and CSV have no limit."""
BARS_WIDTH = 40


class Format(StrEnum):
    """The format in which rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="The query, in the SQL of DuckDB; - reads it from stdin")
    ],
    lake: Annotated[
        str, typer.Option("--lake", metavar="DIR", help="The lake, with the tables messages, journal and gaps")
    ] = "",
    as_of: Annotated[
        str, typer.Option("--as-of", metavar="WHEN", help="Read the lake as it was at this version or time")
    ] = "",
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="QUEUE", help="A queue of the server to read; repeatable")
    ] = None,
    project: Annotated[
        str, typer.Option("--project", help="Read all queues of this project if there is no --queue")
    ] = "default",
    output: Annotated[Format, typer.Option("--format", help="How the rows are printed")] = Format.TABLE,
    chart: Annotated[
        bool, typer.Option("--chart", help="Draw the last column, which must be a number, as bars")
    ] = False,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read and write files, as COPY … TO does")
    ] = False,
) -> None:
    """Query a lake and a server with SQL, read-only.

    The lake has the tables messages, journal and gaps. The server has the tables queues, and queued with the current
    messages of the queues, in the columns of messages. A query reads and writes no files unless --allow-files is given.
    This needs pip install 'curbstone[sql]'.
    """
    from curbstone.spark.failure import PipelineError
    from curbstone.spark.jobs import SQL_PACKAGES
    from curbstone.spark.options import address_of
    from curbstone.spark.session import check_packages
    from curbstone.spark.sql import Sql

    try:
        check_packages(SQL_PACKAGES)
        text = sys.stdin.read() if query == "-" else query
        address = address_of("", "")
        with Sql(
            lake=lake, as_of=as_of, server=address, queues=queue or (), project=project, allow_files=allow_files
        ) as database:
            names, rows = database.run(text)
            if chart:
                _print_chart(names, rows)
            else:
                PRINT[output](names, rows)
    except PipelineError as error:
        raise CommandFailed(str(error).removeprefix("curbstone: "), FAILED) from None


def _print_table(names: list[str], rows: Iterator[list[Any]]) -> None:

    shown = [[_shown(value) for value in row] for row in islice(rows, ROWS_SHOWN)]
    if names:
        console().print(table(names, shown))
    if next(rows, None) is not None:
        note(f"… only {ROWS_SHOWN:,} rows are shown; --format csv or json prints all")


def _print_json(names: list[str], rows: Iterable[list[Any]]) -> None:

    for row in rows:
        print_json({name: _plain(value) for name, value in zip(names, row, strict=True)})


def _print_csv(names: list[str], rows: Iterable[list[Any]]) -> None:

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([shown(_text(value)) for value in row] for row in rows)


PRINT = {Format.TABLE: _print_table, Format.JSON: _print_json, Format.CSV: _print_csv}


def _print_chart(names: list[str], rows: Iterator[list[Any]]) -> None:
    from rich.bar import Bar
    from rich.text import Text

    found = list(islice(rows, ROWS_SHOWN))
    values = [float(row[-1] or 0) if isinstance(row[-1], (int, float, Decimal, type(None))) else None for row in found]
    if not names or None in values:
        raise CommandFailed("--chart needs a number in the last column", WRONG)
    grid = table(names, [])
    grid.columns[-1].justify = "right"
    grid.add_column("")
    most = max((value for value in values if value), default=1.0)
    for row, value in zip(found, values, strict=True):
        bar = Bar(most, 0, max(value or 0, 0), width=BARS_WIDTH)
        grid.add_row(*[Text(printable(_shown(cell))) for cell in row], bar)
    console().print(grid)


def _plain(value: Any) -> Any:
    """Return a value for JSON. Bytes become text, or base64 if they are not valid text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, (dict, list)):
        return json_text(plain)
    return str(plain)


def _shown(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    return text if len(text) <= 60 else text[:59] + "…"
