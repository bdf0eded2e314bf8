"""`curbstone serve`. `settings` has the table of its options; `serve` does the work."""

from __future__ import annotations

import gc
from typing import Annotated, Any

import typer

from curbstone.cli.parameters import add_parameters
from curbstone.settings import OPTIONS, Settings


def serve(**given: object) -> int:
    """Serve queues until SIGTERM or SIGINT.

    Each option can also be given as an environment variable (CURBSTONE_CAP for --cap), or as a key of the TOML file of
    --config. The command line has precedence over the environment, and the environment over the file. The variables
    PORT, NARCONI_MAX_MESSAGE_SIZE, NARCONI_MAX_MESSAGE_TTL and NARCONI_DEFAULT_LIMIT are supported, too.
    NARCONI_AMQP_URI is ignored, with a warning. Logs go to stderr. One line on stdout says when all listeners are open.
    """
    from curbstone.settings import load

    return run_server(load({name: value for name, value in given.items() if was_given(value)}))


def run_server(settings: Settings) -> int:
    """Serve with these settings; return the exit code."""
    # The server is imported only here, because that is slow and no other command needs it. Without garbage collection
    # it takes a tenth less. `run` enables collection again.
    gc.disable()
    from curbstone.serve import run

    return run(settings)


def was_given(value: object) -> bool:
    """Return whether an option was given on the command line."""
    return value not in (None, [], ())


def parameters() -> dict[str, Any]:
    """Return a parameter for each option. The default is None, so that a given default can be distinguished."""
    found: dict[str, Any] = {}
    for name, (kind, help, also) in OPTIONS.items():
        names = ["--" + name.replace("_", "-"), *([also] if also else [])]
        kind_of: Any = list[str] if kind.is_list else str if kind.metavar else bool
        option = typer.Option(*names, metavar=kind.metavar or None, help=help, show_default=False)
        found[name] = Annotated[kind_of | None, option]
    return found


add_parameters(serve, serve, parameters(), None, without="given")
