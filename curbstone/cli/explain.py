"""`curbstone explain`: says why a queue delivers nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from curbstone.cli.options import Json, Queue


def explain(
    queue: Queue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a message")] = "",
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="Explain the queue as this group sees it")
    ] = "",
    as_json: Json = False,
) -> None:
    """Say why nothing is delivered from a queue, or where a message is."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import print_json

    params = {"group": group} | ({"id": message_id} if message_id else {})
    with Client() as client:
        explained = client.json("GET", queue_of(queue), "/explain", params=params)
    if as_json:
        print_json(explained)
    else:
        print("\n".join(explained["sentences"]))
