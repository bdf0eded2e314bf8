"""`curbstone redrive`: moves dead letters back to the queues they came from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curbstone.cli.options import DEFAULT_SERVER, Json, Queue, ServerUrl


def redrive(
    queue: Queue,
    to: Annotated[
        str,
        typer.Option("--to", metavar="QUEUE", help="Move all to this queue. Default: the queue that each came from"),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many letters to move at most; 0 for all")] = 0,
    message_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only move the letter with this id")] = "",
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Move dead letters back to the queues they came from.

    The server moves them in small batches, each of them whole or not at all.
    """
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import print_json, progress

    wishes: dict[str, Any] = {}
    if to:
        wishes["to"] = str(queue_of(to)) if "/" in to else queue_of(to).queue
    if message_id:
        wishes["id"] = message_id
    if limit:
        wishes["limit"] = limit
    with Client(server) as client, progress("Moving dead letters"):
        answer = client.json("POST", queue_of(queue), "/redrive", json=wishes, timeout=None)
    if as_json:
        print_json(answer)
    else:
        print(f"{answer['moved']} messages moved")
        for why, count in answer["stayed"].items():
            print(f"{count} stay: {why}")
