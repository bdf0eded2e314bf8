"""`curbstone batches`: the batches of a queue that have not ended."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import console, print_json, table
from curbstone.exit_codes import WRONG, CommandFailed

ENDS = ("acked", "dead", "expired", "purged", "replaced", "unknown")


def batches(
    queue: Queue,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="The id of a batch. Without it, all are listed")] = "",
    drop: Annotated[bool, typer.Option("--drop", help="Drop the batch: no report is sent, its messages stay")] = False,
    as_json: Json = False,
) -> None:
    """List the batches of a queue that have not ended, or drop one."""
    if drop and not batch:
        raise CommandFailed("--drop needs the id of a batch", WRONG)
    name, path = queue_of(queue), f"/batches/{quote(batch, safe='')}" if batch else "/batches"
    with Client() as client:
        if drop:
            client.queue("DELETE", name, path)
            print(f"batch {batch} of queue {name} dropped")
            return
        found: dict[str, Any] = client.json("GET", name, path)
    open_batches: list[dict[str, Any]] = [found] if batch else found["batches"]
    if as_json:
        print_json(found if batch else open_batches)
    elif not open_batches:
        console().print(f"No batch of queue {name} is open.")
    else:
        console().print(table(("BATCH", "STORED", "PENDING", "ENDED", "REPORT TO", ""), map(_row, open_batches)))


def _row(batch: dict[str, Any]) -> list[object]:
    ended = ", ".join([f"{batch[end]} {end}" for end in ENDS if batch[end]])
    stored = f"{batch['stored']} of {batch.get('size', '?')}"
    return [batch["batch"], stored, batch["pending"], ended, batch.get("to", "?"), batch.get("refusal", "")]
