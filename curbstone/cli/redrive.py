"""`curbstone redrive`: moves dead letters back to the queues they came from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curbstone.cli.options import Json, Queue


def redrive(
    queue: Queue,
    to: Annotated[
        str,
        typer.Option("--to", metavar="QUEUE", help="Move all to this queue. Default: the queue that each came from"),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many dead letters to move at most; 0 for all")] = 0,
    message_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only move the dead letter with this id")] = "",
    as_json: Json = False,
) -> None:
    """Move dead letters back to the queues they came from.

    The server moves them in small batches, each of them whole or not at all.
    """
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import counted, print_json, progress

    body: dict[str, Any] = {}
    if to:
        body["to"] = str(queue_of(to)) if "/" in to else queue_of(to).queue
    if message_id:
        body["id"] = message_id
    if limit:
        body["limit"] = limit
    with Client() as client, progress("Moving dead letters"):
        answer = client.json("POST", queue_of(queue), "/redrive", json=body, timeout=None)
    if as_json:
        print_json(answer)
    else:
        print(f"{counted(answer['moved'], 'message')} moved")
        if not answer["moved"] and not answer["stayed"]:
            print(
                f"queue {queue} has no dead letters that are ready"
                + (f" with the id {message_id}" if message_id else "")
            )
        for why, count in answer["stayed"].items():
            print(f"{count} stay: {why}")
