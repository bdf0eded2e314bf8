"""`curbstone purge`: empty a queue."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from curbstone.cli.options import Json, Queue


def purge(
    queue: Queue,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not erase the messages on disk, so that `undo` can bring them back")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove all messages that are ready or delayed, and erase them on disk.

    Messages that a consumer holds stay. On a terminal, the command asks for confirmation first.
    """
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import counted, print_json

    name = queue_of(queue)
    with Client() as client:
        if not yes and sys.stdin.isatty():
            info = client.json("GET", name)
            typer.confirm(
                f"Remove {counted(info['rdy'] + info['delayed'], 'message')} of {name}{'' if keep else ' for good'}?",
                abort=True,
            )
        answer = client.json("POST", name, "/purge", json={"keep": keep}, timeout=None)
    if as_json:
        print_json(answer)
    else:
        print(f"{counted(answer['purged'], 'message')} removed")
