"""`curbstone pipeline report`: the figures of queues per minute, as Parquet and as one HTML page."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from curbstone.spark import checks, jobs
from curbstone.spark.client import Address
from curbstone.spark.columns import JOURNAL
from curbstone.spark.dead_letters import dead_letters
from curbstone.spark.failure import PipelineError
from curbstone.spark.figures import Minute, gather, minutes, range_s
from curbstone.spark.gaps import gaps_of
from curbstone.spark.options import moment_ms, read_options
from curbstone.spark.page import page, step_of
from curbstone.spark.sql import database, first_line

PAGE, TABLE = "report.html", "report.parquet"
TITLE = "Curbstone: queues by the minute"


def report(
    out: Path,
    *,
    server: Address | None = None,
    lake_path: str = "",
    queues: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
    title: str = TITLE,
) -> list[Minute]:
    """Write `report.parquet` and `report.html` into the folder `out`, and return the figures.

    `server` is a running server, for the journals of `queues` (`project/queue`). `lake_path` is a lake with a journal.
    `queues` and the times limit the rows, not what they count: a message that was published before the range and
    settled within it has its latency. Raise PipelineError.
    """
    import duckdb

    jobs.show_status("reading the journal")
    made = datetime.now(UTC)
    before = None
    try:
        with database() as base:
            gather(base, server=server, queues=queues, lake=lake_path)
            jobs.show_status("counting")
            rows = minutes(base, queues=queues, since_ms=since_ms, until_ms=until_ms)
            step_s = step_of(range_s(base, queues=queues, since_ms=since_ms, until_ms=until_ms))
            drawn = minutes(base, queues=queues, since_ms=since_ms, until_ms=until_ms, step_s=step_s)
            if since_ms is not None:
                length_ms = (until_ms or int(made.timestamp() * 1000)) - since_ms
                before = minutes(base, queues=queues, since_ms=since_ms - length_ms, until_ms=since_ms)
            jobs.show_status("reading dead letters")
            dead = dead_letters(
                base, server=server, queues=queues, lake=lake_path, since_ms=since_ms, until_ms=until_ms
            )
    except duckdb.Error as error:
        raise PipelineError(f"can't evaluate the journal: {first_line(error)}") from None
    finally:
        jobs.clear_status()
    out.mkdir(parents=True, exist_ok=True)
    _write_table(rows, out / TABLE)
    gaps = [gap for gap in gaps_of(lake_path) if not queues or gap.queue in queues] if lake_path else []
    console = f"{server.url}/console" if server is not None else ""
    _replace(out / PAGE, page(drawn, title, made, gaps, dead, before, step_s=step_s, console=console).encode())
    return rows


def _write_table(rows: Sequence[Minute], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {
        "str": pa.string(),
        "datetime": pa.timestamp("us", tz="UTC"),
        "int": pa.int64(),
        "float | None": pa.float64(),
    }
    schema = pa.schema([pa.field(one.name, kinds[str(one.type)]) for one in dataclasses.fields(Minute)])
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    columns["minute"] = [_utc(moment) for moment in columns["minute"]]
    temporary = path.with_name(path.name + ".new")
    parquet.write_table(pa.table(columns, schema=schema), temporary, compression="zstd")
    temporary.replace(path)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse and return the command line. End the process with code 2 if it is wrong."""
    parser = jobs.parser("report", "Report the activity of queues by the minute, as Parquet and as one HTML page.")
    parser.add_argument(
        "queues", nargs="*", metavar="QUEUE", help="a queue of a running server, as NAME or PROJECT/NAME"
    )
    parser.add_argument("--lake", default="", metavar="DIR", help="a lake that `archive --journal` fills")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="DIR", help="the directory to write to (report)"
    )
    parser.add_argument("--since", default="", metavar="TIME", help="from this minute on, such as 2026-01-31T12:00:00Z")
    parser.add_argument("--until", default="", metavar="TIME", help="up to this minute, exclusive")
    parser.add_argument("--title", default=TITLE, help="the title of the page")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="read only the lake, not the server, even if queues are named",
    )
    return parser.parse_args(given)


def _job(known: argparse.Namespace) -> str:
    options = {
        **jobs.source_options(known),
        "queues": ",".join(known.queues),
        "mode": "journal",
        "failOnDataLoss": "false",
    }
    try:
        if known.offline and not known.lake:
            raise PipelineError("--offline needs --lake")
        if not known.queues and not known.lake:
            raise PipelineError("name queues, or a lake with --lake")
        source = read_options(options, stream=False) if known.queues else None
        names = source.queues if source else ()
        since, until = (moment_ms(text, name) if text else None for text, name in ((known.since, "--since"), (known.until, "--until")))  # fmt: skip # noqa: E501
    except PipelineError as error:
        raise jobs.UsageError(str(error)) from None
    checks.check_writable(str(known.out), "--out")
    if known.lake:
        checks.check_lake(known.lake, JOURNAL)
    live = source.address if source and not known.offline else None
    if live:
        checks.check_server(live, names)
    rows = report(
        known.out,
        server=live,
        lake_path=known.lake,
        queues=names,
        since_ms=since,
        until_ms=until,
        title=known.title,
    )
    times = jobs.quantity(len({row.minute for row in rows}), "minute")
    queues = jobs.quantity(len({(row.project, row.queue) for row in rows}), "queue")
    return f"reported {times} of {queues}: {known.out / PAGE}, {known.out / TABLE}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return jobs.run(_job, arguments(given), needs=jobs.SQL_PACKAGES)


if __name__ == "__main__":
    sys.exit(main())
