"""`curbstone pause` and `resume`: stop and restart a queue's deliveries, or its taking of messages."""

from __future__ import annotations

from typing import Annotated

import typer

from curbstone.cli.options import Queue


def pause(
    queue: Queue,
    publish: Annotated[
        bool, typer.Option("--publish", help="Refuse new messages, as a full queue does, and deliver as before")
    ] = False,
) -> None:
    """Stop the deliveries of a queue, over all protocols.

    The queue still accepts messages. With --publish it is the other way round.
    """
    _call(queue, "/pause", {"deliver": not publish, "publish": publish})


def resume(queue: Queue) -> None:
    """Undo `pause`, whether it was with --publish or without."""
    _call(queue, "/resume")


def _call(queue: str, path: str, body: dict[str, bool] | None = None) -> None:
    from curbstone.cli.client import Client, queue_of

    with Client() as client:
        client.queue("POST", queue_of(queue), path, json=body)
