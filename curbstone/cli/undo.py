"""`curbstone undo`: brings back settled messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curbstone.cli.options import Json, Queue


def undo(
    queue: Queue,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=10_000, help="How many messages at most; those that were settled last come back"
        ),
    ] = 1000,
    within: Annotated[
        float | None,
        typer.Option("--within", min=0, metavar="SECONDS", help="Only messages that were settled in the last SECONDS"),
    ] = None,
    message_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only the message with this id")] = "",
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The group in which it was settled")] = "",
    as_json: Json = False,
) -> None:
    """Bring back messages that were acked, popped, or purged with --keep.

    Only messages that the queue's log still has can come back.
    """
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import counted, print_json, progress

    wishes: dict[str, Any] = {"limit": limit, "group": group}
    if within is not None:
        wishes["within"] = within
    if message_id:
        wishes["id"] = message_id
    with Client() as client, progress("Looking through the log"):
        answer = client.json("POST", queue_of(queue), "/undo", json=wishes, timeout=None)
    if as_json:
        print_json(answer)
        return
    print(f"{counted(answer['restored'], 'message')} restored")
    if answer["gone"]:
        print(f"{answer['gone']} are not in the log any more")
    if answer["expired"]:
        print(f"{answer['expired']} have expired")
    if answer["more"]:
        print("there are more: run it again, or with a larger --limit")
    if answer["damaged"]:
        print("a part of the log is damaged: what was settled before it stays settled")
