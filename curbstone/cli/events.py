"""`curbstone events`, `bind` and `unbind`: which queues get a copy of what is published to an event."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curbstone.cli.options import Json, Queue

Event = Annotated[str, typer.Argument(metavar="EVENT", help="An event, or a mask: * is one word, # any number of them")]


def events(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project", show_default=True)] = "default",
    as_json: Json = False,
) -> None:
    """List the events of a project and the queues bound to each."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import console, print_json, table

    with Client() as client:
        path = f"/v2/{queue_of(f'{project}/any').project}/events"
        found: list[dict[str, Any]] = client.call("GET", path).json()["events"]
    if as_json:
        print_json(found)
    else:
        console().print(table(("EVENT", "QUEUES"), [[each["event"], " ".join(each["queues"])] for each in found]))


def bind(event: Event, queue: Queue) -> None:
    """Give a queue a copy of each message to an event of its project."""
    _change("PUT", event, queue)


def unbind(event: Event, queue: Queue) -> None:
    """Undo `bind`."""
    _change("DELETE", event, queue)


def _change(method: str, event: str, queue: str) -> None:
    from urllib.parse import quote

    from curbstone.cli.client import Client, queue_of

    name = queue_of(queue)
    with Client() as client:
        path = f"/v2/{name.project}/events/{quote(event, safe='')}/queues/{quote(name.queue, safe='')}"
        client.call(method, path)
