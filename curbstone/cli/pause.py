"""`curbstone pause` and `resume`: stop and restart a queue's deliveries, or its taking of messages."""

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
    _call(queue, server, "/pause", {"deliver": not publish, "publish": publish})


def resume(queue: Queue, server: ServerUrl = DEFAULT_SERVER) -> None:
    """Undo `pause`, with and without --publish."""
    _call(queue, server, "/resume")


def _call(queue: str, server: str, path: str, body: dict[str, bool] | None = None) -> None:
    from curbstone.cli.client import Client, queue_of

    with Client(server) as client:
        client.queue("POST", queue_of(queue), path, json=body)
