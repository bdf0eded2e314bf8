"""The `curbstone` command. Each sub-command is a function in a file of its own, registered here.

A command returns its exit code, or None for 0. What goes wrong is told in one line on stderr: exit code 2
for a wrong command line or setting, 1 for a server that can't do what it was asked.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from curbstone import __version__
from curbstone.core.errors import CurbstoneError
from curbstone.serve_command import serve
from curbstone.settings import SettingsError

app = typer.Typer(
    name="curbstone",
    add_completion=False,
    rich_markup_mode=None,  # plain text wraps anywhere and reads well in a pipe
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with the values of local variables could show messages and secrets.
    pretty_exceptions_enable=False,
)
app.command()(serve)


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
        return _fail(f"{error.format_message()} (see curbstone --help)", 2)
    except SettingsError as error:
        return _fail(str(error), 2)
    except CurbstoneError as error:
        return _fail(str(error), 1)
    except Abort:
        return _fail("aborted", 130)
    return code if isinstance(code, int) else 0


def _fail(reason: str, code: int) -> int:
    print(f"curbstone: {' '.join(reason.split())}", file=sys.stderr)
    return code
