"""`curbstone pause` and `resume`: whether a queue delivers."""

from __future__ import annotations

from curbstone.cli.options import DEFAULT_SERVER, Queue, ServerUrl


def pause(queue: Queue, server: ServerUrl = DEFAULT_SERVER) -> None:
    """Have a queue deliver nothing, by no protocol; it goes on taking messages."""
    _set(queue, server, is_paused=True)


def resume(queue: Queue, server: ServerUrl = DEFAULT_SERVER) -> None:
    """Undo `pause`."""
    _set(queue, server, is_paused=False)


def _set(queue: str, server: str, *, is_paused: bool) -> None:
    from curbstone.cli.client import Client, queue_of

    name = queue_of(queue)
    with Client(server) as client:
        client.queue("GET", name)  # a PUT would make it
        client.queue("PUT", name, json={"paused": is_paused})
