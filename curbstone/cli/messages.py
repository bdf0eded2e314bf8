"""The commands about messages in a queue: `peek`, `purge`, `undo`, `redrive`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import console, counted, print_json, progress, table
from curbstone.exit_codes import NOTHING

SHOWN_CHARACTERS = 60


def peek(
    queue: Queue,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="The maximum number of messages to show")
    ] = 10,
    after: Annotated[str, typer.Option("--after", metavar="ID", help="Only show messages after this one")] = "",
    state: Annotated[str, typer.Option("--state", help="Only show messages in this state: rdy, wip or delayed")] = "",
    filter_text: Annotated[
        str,
        typer.Option(
            "--filter", metavar="CONDITION", help="Only show messages whose headers satisfy it: \"region = 'eu'\""
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    """Show the first messages of a queue, and change nothing. The exit code is 5 if there are none.

    With --filter the whole queue is searched if necessary, 16 MiB at a time.
    """
    parameters = {"limit": str(count), "after": after, "state": state}
    if filter_text:
        parameters["filter"] = filter_text
    with Client() as client:
        answer = client.json("GET", queue_of(queue), "/messages", params=parameters)
        found: list[dict[str, Any]] = answer["messages"]
        while "next" in answer and len(found) < count:
            parameters |= {"after": answer["next"], "limit": str(count - len(found))}
            answer = client.json("GET", queue_of(queue), "/messages", params=parameters)
            found += answer["messages"]
    if as_json:
        for message in found:
            print_json(message)
    elif found:
        rows = [[m["id"], m["state"], m["tries"], _time(m["timestamp"]), *_origin(m), _text(m)] for m in found]
        heads = ["ID", "STATE", "TRIES", "PUBLISHED", "DEAD IN", "REASON", "AFTER", "BODY"]
        if not any("dead" in message for message in found):
            for row in (heads, *rows):
                del row[4:7]
        console().print(table(heads, rows))
    return 0 if found else NOTHING


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _origin(message: dict[str, Any]) -> tuple[str, str, str]:
    """Return where a dead letter died, why, and after how many deliveries."""
    dead = message.get("dead")
    if not dead:
        return "", "", ""
    reason = f"{dead['reason']}: {dead['error']}" if dead.get("error") else dead["reason"]
    return dead["queue"], _cut(reason), counted(int(dead["tries"]), "delivery", "deliveries")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _text(message: dict[str, Any]) -> str:
    prefix = f"[{message['encoding']}] " if "encoding" in message else ""
    return prefix + _cut(str(message["message"]))


def purge(
    queue: Queue,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not erase the messages on disk, so that `undo` can restore them")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove all messages that are ready or delayed, and erase them on disk.

    Messages that a consumer holds stay. On a terminal, the command asks for confirmation first.
    """
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


def undo(
    queue: Queue,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            max=10_000,
            help="The maximum number of messages; the last settled ones are restored",
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
    """Restore messages that were acked, popped, or purged with --keep.

    Only messages that are still in the queue's log can be restored.
    """
    body: dict[str, Any] = {"limit": limit, "group": group}
    if within is not None:
        body["within"] = within
    if message_id:
        body["id"] = message_id
    with Client() as client, progress("Searching the log"):
        answer = client.json("POST", queue_of(queue), "/undo", json=body, timeout=None)
    if as_json:
        print_json(answer)
        return
    print(f"{counted(answer['restored'], 'message')} restored")
    if answer["gone"]:
        print(f"{counted(answer['gone'], 'message is', 'messages are')} no longer in the log")
    if answer["expired"]:
        print(f"{counted(answer['expired'], 'message has', 'messages have')} expired")
    if answer["more"]:
        print("there are more: run the command again, or raise --limit")
    if answer["damaged"]:
        print("part of the log is damaged: messages settled before it stay settled")


def redrive(
    queue: Queue,
    to: Annotated[
        str,
        typer.Option("--to", metavar="QUEUE", help="Move all to this queue. Default: the original queue of each"),
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The maximum number of dead letters to move; 0 for all")
    ] = 0,
    message_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only move the dead letter with this id")] = "",
    as_json: Json = False,
) -> None:
    """Move dead letters back to the queues they came from.

    The server moves them in small batches, each of them atomically.
    """
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
            print(f"{counted(count, 'message stays', 'messages stay')}: {why}")
