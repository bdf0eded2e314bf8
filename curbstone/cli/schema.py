"""`curbstone schema`: the JSON Schema that a queue's messages must match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from curbstone.cli.options import Queue
from curbstone.exit_codes import FAILED, WRONG, CommandFailed


def schema(
    queue: Queue,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A file with the JSON Schema to set. Without it, the schema is printed"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the schema, so that every message is accepted")
    ] = False,
) -> None:
    """Print, set or remove the JSON Schema of a queue's messages."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import json_text

    if remove and file is not None:
        raise CommandFailed("--remove takes no file", WRONG)
    name = queue_of(queue)
    with Client() as client:
        info = client.json("GET", name)  # fails if there is no such queue, which a PUT would create
        if remove or file is not None:
            client.queue("PUT", name, json={"schema": _read(file) if file is not None else None})
        elif info["options"].get("schema") is not None:
            print(json_text(info["options"]["schema"], indent=2))


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file} can't be read as JSON: {error}", FAILED) from None
