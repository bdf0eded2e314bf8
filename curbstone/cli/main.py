"""The `curbstone` command. Each subcommand is a function in a file of its own, registered here.

A command returns its exit code, or None for 0. An error is one line on stderr. The exit codes are in `exit_codes`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import chain
from typing import Annotated, Any

import typer
from typer.exceptions import Abort, TyperException

from curbstone import __version__
from curbstone.cli.access import access, user
from curbstone.cli.backup import backup, restore
from curbstone.cli.batches import batches
from curbstone.cli.bench import bench
from curbstone.cli.check import check
from curbstone.cli.connection import (
    CaFileOption,
    CertFileOption,
    ContextOption,
    ServerOption,
    TokenFileOption,
    before_command,
    with_options,
)
from curbstone.cli.context import context
from curbstone.cli.cron import cron
from curbstone.cli.drill import drill
from curbstone.cli.dump import dump
from curbstone.cli.help import EXIT_CODES, Command, Group
from curbstone.cli.history import history
from curbstone.cli.interruption import Termination
from curbstone.cli.messages import peek, purge, redrive, undo
from curbstone.cli.move import move
from curbstone.cli.pipeline import pipeline
from curbstone.cli.push import push
from curbstone.cli.queue import queue
from curbstone.cli.queues import bind, events, explain, keys, pause, queues, resume, schema, unbind
from curbstone.cli.recv import recv
from curbstone.cli.repair import repair
from curbstone.cli.send import send
from curbstone.cli.serve import serve
from curbstone.cli.sql import sql
from curbstone.cli.standby import promote, standby, switchover
from curbstone.cli.token import token
from curbstone.cli.top import top
from curbstone.cli.transfer import export, import_
from curbstone.core.errors import CurbstoneError
from curbstone.exit_codes import FAILED, INTERRUPTED, TERMINATED, WRONG, CommandFailed

PANELS: dict[str, tuple[Callable[..., Any] | typer.Typer, ...]] = {
    "Server": (serve, standby, promote, switchover, bench, top),
    "Queues": (queues, queue, explain, keys, batches, events, bind, unbind, pause, resume, schema),
    "Messages": (send, recv, peek, history, purge, undo, redrive, move, dump, export, import_, push, cron),
    "Data on disk": (backup, restore, check, repair, drill),
    "Users and logins": (access, user, token, context),
    "Analysis": (sql, pipeline),
}
WITHOUT_SERVER = (serve, standby, promote, restore, check, repair, drill)


def _name_of(command: Callable[..., Any] | typer.Typer) -> str:
    name = command.info.name if isinstance(command, typer.Typer) else command.__name__.rstrip("_")
    return str(name)


class Program(Group):
    """The whole program."""

    panels = {title: [_name_of(command) for command in commands] for title, commands in PANELS.items()}


app = typer.Typer(
    name="curbstone",
    cls=Program,
    epilog=EXIT_CODES,
    rich_markup_mode=None,  # plain text wraps to any width and is readable in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with the values of local variables could show messages and secrets.
    pretty_exceptions_enable=False,
)
for command in chain.from_iterable(PANELS.values()):
    if isinstance(command, typer.Typer):
        app.add_typer(command)
    else:
        called = command if command in WITHOUT_SERVER else with_options(command)
        app.command(_name_of(command), cls=Command)(called)


def _print_version(wanted: bool) -> None:
    if wanted:
        from curbstone.gateway.resources.metrics.figures import BUILD

        print(f"curbstone {__version__} ({BUILD})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def curbstone(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and the build, and exit."
        ),
    ] = False,
    server: ServerOption = "",
    use_context: ContextOption = "",
    token_file: TokenFileOption = "",
    ca_file: CaFileOption = "",
    cert_file: CertFileOption = "",
) -> None:
    """A small durable message queue: a confirmed message is on disk, and no queue takes more space than its cap."""
    before_command(server=server, context=use_context, token_file=token_file, ca_file=ca_file, cert_file=cert_file)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Run the command line and exit."""
    termination = Termination()
    termination.listen()
    code = _run(sys.argv[1:])
    sys.exit(TERMINATED if code == INTERRUPTED and termination.arrived else code)


def _run(arguments: list[str]) -> int:
    try:
        # With standalone_mode=False errors are raised here, and not printed in a box.
        code = app(arguments, prog_name="curbstone", standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        return _fail(f"{error.format_message()} (see {context.command_path if context else 'curbstone'} --help)", WRONG)
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
