"""Parameters that several commands share: a queue, JSON; and the completion of queue names."""

from __future__ import annotations

from typing import Annotated

import typer

from curbstone.cli.client import Client
from curbstone.cli.connection import connect


def complete_queue(incomplete: str) -> list[str]:
    """Return the server's queues whose names begin with `incomplete`, or [] if the server can't be reached."""
    from curbstone.exit_codes import CommandFailed

    project, slash, _ = incomplete.partition("/")
    project, prefix = (project, f"{project}/") if slash else ("default", "")
    try:
        connect()
        with Client() as client:
            found = client.call("GET", f"/v2/{project}/queues", timeout=1).json()["queues"]
    except CommandFailed:
        return []
    return [name for queue in found if (name := prefix + str(queue["name"])).startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A queue, as NAME or PROJECT/NAME", autocompletion=complete_queue)
]
