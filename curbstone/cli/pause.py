"""`curbstone pause` and `resume`: whether a queue delivers, and whether it takes messages."""

from __future__ import annotations

from typing import Annotated

import typer

from curbstone.cli.options import DEFAULT_SERVER, Queue, ServerUrl


def pause(
    queue: Queue,
    publish: Annotated[bool, typer.Option("--publish", help="Take nothing in, as if full; deliver as before")] = False,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Have a queue deliver nothing, by no protocol; it goes on taking messages. With --publish the other way round."""
    _set(queue, server, {"publish_paused" if publish else "paused": True})


def resume(queue: Queue, server: ServerUrl = DEFAULT_SERVER) -> None:
    """Undo `pause`, with and without --publish."""
    _set(queue, server, {"paused": False, "publish_paused": False})


def _set(queue: str, server: str, changes: dict[str, bool]) -> None:
    from curbstone.cli.client import Client, queue_of

    name = queue_of(queue)
    with Client(server) as client:
        client.queue("GET", name)  # a PUT would make it
        client.queue("PUT", name, json=changes)
