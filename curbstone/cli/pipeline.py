"""`curbstone pipeline …`: the jobs that write and use a lake. They need the extra `sql` or `spark`.

Each job has its own command line, for example `python -m curbstone.spark.archive`. Spark is imported only when a job
runs.
"""

from __future__ import annotations

import importlib

import typer

from curbstone.cli.connection import connect
from curbstone.cli.help import Group

JOBS = {
    "archive": "Archive queues to a lake of Parquet files. It stores each message exactly once, even after a crash.",
    "status": "Show how far a lake's archive is behind its queues. Exit code 1 if too far.",
    "report": "Report the activity of queues by the minute, as Parquet and as one HTML page.",
    "replay": "Publish messages of a lake again, in their order. Repeating a name publishes nothing.",
    "compact": "Merge the small files of a lake into large ones, and remove old data.",
    "iceberg": "Create or update Iceberg tables for a lake, with the same data files.",
    "upgrade": "Convert a lake that an earlier release wrote.",
}

# All arguments after the name of a job are passed to the job, including --help.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

pipeline = typer.Typer(name="pipeline", cls=Group)


@pipeline.callback(invoke_without_command=True)
def _jobs(ctx: typer.Context) -> None:
    """Archive queues to a lake, and use the lake (pip install 'curbstone[sql]')."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _add(name: str, text: str) -> None:
    @pipeline.command(name, help=text, context_settings=PASSED_ON)
    def job(ctx: typer.Context) -> int:
        return _run(name, ctx.args)


for _name, _text in JOBS.items():
    _add(_name, _text)


def _run(name: str, arguments: list[str]) -> int:
    connect()
    code: int = importlib.import_module(f"curbstone.spark.{name}").main(arguments)
    return code
