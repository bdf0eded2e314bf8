"""The `curbstone` command. Each subcommand is a function in a file of its own, registered here.

A command returns its exit code, or None for 0. An error is one line on stderr. The exit codes are in `exit_codes`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from curbstone import __version__
from curbstone.cli.access import access, user
from curbstone.cli.backup import backup, restore
from curbstone.cli.bench import bench
from curbstone.cli.check import check
from curbstone.cli.cron import cron
from curbstone.cli.drill import drill
from curbstone.cli.dump import dump
from curbstone.cli.environment import CA_FILE_VARIABLE, CERT_FILE_VARIABLE, TOKEN_FILE_VARIABLE
from curbstone.cli.events import bind, events, unbind
from curbstone.cli.explain import explain
from curbstone.cli.history import history
from curbstone.cli.interruption import Termination
from curbstone.cli.move import move
from curbstone.cli.pause import pause, resume
from curbstone.cli.peek import peek
from curbstone.cli.pipeline import pipeline
from curbstone.cli.purge import purge
from curbstone.cli.push import push
from curbstone.cli.queues import queues
from curbstone.cli.recv import recv
from curbstone.cli.redrive import redrive
from curbstone.cli.repair import repair
from curbstone.cli.schema import schema
from curbstone.cli.send import send
from curbstone.cli.serve import serve
from curbstone.cli.sql import sql
from curbstone.cli.token import token
from curbstone.cli.top import top
from curbstone.cli.transfer import export, import_
from curbstone.cli.undo import undo
from curbstone.core.errors import CurbstoneError
from curbstone.exit_codes import FAILED, INTERRUPTED, TERMINATED, WRONG, CommandFailed

EXIT_CODES = (
    "Exit codes: 0 done; 1 the server refused, or can't do it now; 2 the command line or a setting is wrong; 3 the"
    " server can't be reached; 4 there is no such queue; 5 there was no message; 6 damage was found; 130 interrupted;"
    " 143 ended by SIGTERM."
)

app = typer.Typer(
    name="curbstone",
    rich_markup_mode=None,  # plain text wraps to any width and is readable in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with the values of local variables could show messages and secrets.
    pretty_exceptions_enable=False,
)
COMMANDS = (
    *(
        serve,
        queues,
        explain,
        history,
        send,
        recv,
        peek,
        dump,
        export,
        import_,
        purge,
        undo,
        pause,
        resume,
        move,
        redrive,
        schema,
        push,
        cron,
    ),
    *(events, bind, unbind, top, bench, backup, restore, check, repair, drill, sql),
)
for command in COMMANDS:
    name = command.__name__.rstrip("_")
    app.command(name, epilog=None if command is serve else EXIT_CODES)(command)
app.add_typer(pipeline)
app.add_typer(access)
app.add_typer(user)
app.add_typer(token)


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
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="File with a token, for a server that has users")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", metavar="FILE", help="Certificates of the authority that signed the server's"),
    ] = None,
    cert_file: Annotated[
        Path | None,
        typer.Option(
            "--cert-file", metavar="FILE", help="File with the client certificate to log in with, and its key"
        ),
    ] = None,
) -> None:
    """A small durable message queue: a confirmed message is on disk, and no queue takes more space than its cap."""
    given = {TOKEN_FILE_VARIABLE: token_file, CA_FILE_VARIABLE: ca_file, CERT_FILE_VARIABLE: cert_file}
    os.environ.update({name: str(file) for name, file in given.items() if file is not None})
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Run the command line and exit."""
    termination = Termination()
    termination.listen()
    code = _run(sys.argv[1:])
    sys.exit(TERMINATED if code == INTERRUPTED and termination.came else code)


def _run(arguments: list[str]) -> int:
    try:
        # With standalone_mode=False errors are raised here, and not printed in a box.
        code = app(arguments, prog_name="curbstone", standalone_mode=False)
    except TyperException as error:
        return _fail(f"{error.format_message()} (see curbstone --help)", WRONG)
    except CommandFailed as error:
        return _fail(str(error), error.code)
    except CurbstoneError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Abort:
        return _fail("aborted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(reason: str, code: int) -> int:
    print(f"curbstone: {' '.join(reason.split())}", file=sys.stderr)
    return code
