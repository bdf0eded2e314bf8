"""`curbstone peek`: look at messages without taking them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from curbstone.cli.options import Json, Queue
from curbstone.exit_codes import NOTHING

SHOWN_CHARACTERS = 60


def peek(
    queue: Queue,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="How many messages to show at most")
    ] = 10,
    after: Annotated[
        str, typer.Option("--after", metavar="ID", help="Only show messages that come after this one")
    ] = "",
    state: Annotated[str, typer.Option("--state", help="Only show messages in this state: rdy, wip or delayed")] = "",
    as_json: Json = False,
) -> int:
    """Show the first messages of a queue, and change nothing. The exit code is 5 if there are none."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import console, print_json, table

    parameters = {"limit": str(count), "after": after, "state": state}
    with Client() as client:
        found: list[dict[str, Any]] = client.json("GET", queue_of(queue), "/messages", params=parameters)["messages"]
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
    from curbstone.cli.output import counted

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
