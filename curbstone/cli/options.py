"""Options that several commands share: the server, a queue, JSON; and the completion of queue names."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from curbstone.cli.environment import SERVER_VARIABLE

DEFAULT_SERVER = "http://127.0.0.1:8080"


def complete_queue(incomplete: str) -> list[str]:
    """Return the server's queues whose names begin with `incomplete`, or [] if the server can't be asked."""
    from curbstone.cli.client import Client
    from curbstone.exit_codes import CommandFailed

    project, slash, _ = incomplete.partition("/")
    project, prefix = (project, f"{project}/") if slash else ("default", "")
    try:
        with Client(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER) as client:
            found = client.call("GET", f"/v2/{project}/queues", timeout=1).json()["queues"]
    except CommandFailed:
        return []
    return [name for queue in found if (name := prefix + str(queue["name"])).startswith(incomplete)]


ServerUrl = Annotated[
    str, typer.Option("--server", envvar=SERVER_VARIABLE, metavar="URL", help="HTTP address of the server")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A queue, as NAME or PROJECT/NAME", autocompletion=complete_queue)
]
