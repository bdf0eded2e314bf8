"""The `curbstone` command. Each sub-command is a function in a file of its own, registered here.

A command returns its exit code, or None for 0. What goes wrong is told in one line on stderr; the exit codes
are in `failure`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from curbstone import __version__
from curbstone.bench_command import bench
from curbstone.check_command import check
from curbstone.core.errors import CurbstoneError
from curbstone.drill_command import drill
from curbstone.dump_command import dump
from curbstone.failure import FAILED, INTERRUPTED, WRONG, CommandFailed
from curbstone.move_command import move
from curbstone.peek_command import peek
from curbstone.pipeline_command import pipeline
from curbstone.purge_command import purge
from curbstone.queues_command import queues
from curbstone.recv_command import recv
from curbstone.redrive_command import redrive
from curbstone.repair_command import repair
from curbstone.send_command import send
from curbstone.serve_command import serve
from curbstone.settings import SettingsError
from curbstone.top_command import top

EXIT_CODES = (
    "Exit codes: 0 done; 1 the server refused or can't; 2 wrong command line or setting; 3 the server can't be reached;"
    " 4 no such queue; 5 there was nothing; 6 damage found; 130 interrupted."
)

app = typer.Typer(
    name="curbstone",
    rich_markup_mode=None,  # plain text wraps anywhere and reads well in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with the values of local variables could show messages and secrets.
    pretty_exceptions_enable=False,
)
for command in (serve, queues, send, recv, peek, dump, purge, move, redrive, top, bench, check, repair, drill):
    app.command(epilog=None if command is serve else EXIT_CODES)(command)
app.add_typer(pipeline)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"curbstone {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def curbstone(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A small durable message queue: confirmed means on disk, and no file exceeds its cap."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Run the command line and exit."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    try:
        # Not standalone, so that errors come here instead of being drawn in a box.
        code = app(arguments, prog_name="curbstone", standalone_mode=False)
    except TyperException as error:
        return _fail(f"{error.format_message()} (see curbstone --help)", WRONG)
    except SettingsError as error:
        return _fail(str(error), WRONG)
    except CommandFailed as error:
        return _fail(str(error), error.code)
    except CurbstoneError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:  # who reads our output had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Abort:
        return _fail("aborted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(reason: str, code: int) -> int:
    print(f"curbstone: {' '.join(reason.split())}", file=sys.stderr)
    return code
