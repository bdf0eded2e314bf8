"""The commands about whole queues: `queues`, `explain`, `keys`, `pause`, `resume`, `schema`, `events`, `bind`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import console, json_text, print_json, size, table
from curbstone.exit_codes import FAILED, WRONG, CommandFailed

PROJECTS_SHOWN = 20
Event = Annotated[str, typer.Argument(metavar="EVENT", help="An event, or a mask: * is one word, # any number of them")]


def queues(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project", show_default=True)] = "default",
    as_json: Json = False,
) -> None:
    """List the queues of a project."""
    if "/" in project:
        raise typer.BadParameter(f"{project!r} is not a project; to show one queue: curbstone queue show {project}")
    path = f"/v2/{queue_of(f'{project}/any').project}/queues"
    with Client() as client:
        found: list[dict[str, Any]] = client.call("GET", path).json()["queues"]
        projects: list[dict[str, Any]] = [] if found else client.call("GET", "/v2").json()["projects"]
    if as_json:
        print_json(found)
        return
    if not found:
        others = ", ".join([f"{each['project']} ({each['queues']})" for each in projects[:PROJECTS_SHOWN]])
        console().print(
            f"Project {project} has no queues; there are {f'some in {others}' if others else 'none at all'}."
        )
        return
    rows = []
    for queue in found:
        counts = (queue["rdy"], queue["wip"], queue.get("delayed", "?"), queue["consumers"])
        on_disk = queue.get("bytes")  # missing on a cluster, where it is not known
        disk = ("?", "?") if on_disk is None else (size(on_disk), f"{100 * on_disk / queue['cap']:.0f} %")
        rows.append([queue["name"], *counts, *disk, "damaged" if queue.get("damaged") else ""])
        for name, group in queue["groups"].items():
            note = "" if group["declared"] else "group not declared"
            rows.append([f"  {name}", group["rdy"], group["wip"], group["delayed"], "", "", "", note])
    console().print(table(("QUEUE", "RDY", "WIP", "DELAYED", "CONSUMERS", "ON DISK", "OF CAP", ""), rows))


def explain(
    queue: Queue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a message")] = "",
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Explain the queue for this group")] = "",
    as_json: Json = False,
) -> None:
    """Explain why nothing is delivered from a queue, or where a message is."""
    params = {"group": group} | ({"id": message_id} if message_id else {})
    with Client() as client:
        explained = client.json("GET", queue_of(queue), "/explain", params=params)
    if as_json:
        print_json(explained)
    else:
        print("\n".join(explained["sentences"]))


class KeyOrder(StrEnum):
    """The sort order of keys."""

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"


def keys(
    queue: Queue,
    by: Annotated[KeyOrder, typer.Option("--by", help="The count to sort by")] = KeyOrder.WAITING,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The maximum number of keys to show")] = 20,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Count for this group")] = "",
    as_json: Json = False,
) -> None:
    """List the ordering keys with the most messages waiting or in flight."""
    params = {"by": by.value, "limit": limit, "group": group}
    with Client() as client:
        found = client.json("GET", queue_of(queue), "/keys", params=params)
    if as_json:
        print_json(found)
    elif not found["keys"]:
        console().print(
            "The queue has read no message with a key that waits or is in flight. Unless it is fair, it reads the keys"
            " of messages only when it delivers them."
        )
    else:
        rows = [[each["key"] or "(none)", each["waiting"], each["in_flight"], _time(each)] for each in found["keys"]]
        console().print(table(("KEY", "WAITING", "IN FLIGHT", "NEXT DELIVERY"), rows))
        if found["total"] > len(rows):
            console().print(f"{found['total'] - len(rows)} more")


def _time(counts: dict[str, Any]) -> str:
    return datetime.fromtimestamp(counts["next_ms"] / 1000, UTC).strftime("%H:%M:%S UTC") if "next_ms" in counts else ""


def pause(
    queue: Queue,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish", help="Pause publishing instead of deliveries: refuse new messages, as a full queue does"
        ),
    ] = False,
) -> None:
    """Stop the deliveries of a queue, over all protocols.

    The queue still accepts messages. With --publish it is the reverse.
    """
    _set_paused(queue, "/pause", {"deliver": not publish, "publish": publish})


def resume(queue: Queue) -> None:
    """Undo `pause`, whether it was with --publish or without."""
    _set_paused(queue, "/resume")


def _set_paused(queue: str, path: str, body: dict[str, bool] | None = None) -> None:

    with Client() as client:
        client.queue("POST", queue_of(queue), path, json=body)


def schema(
    queue: Queue,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A file with the JSON Schema to set. Without it, the schema is printed"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the schema, so that every message is accepted")
    ] = False,
) -> None:
    """Print, set or remove the JSON Schema of a queue's messages."""
    if remove and file is not None:
        raise CommandFailed("--remove takes no file", WRONG)
    name = queue_of(queue)
    with Client() as client:
        info = client.json("GET", name)  # fails if there is no such queue, which a PUT would create
        if remove or file is not None:
            client.queue("PUT", name, json={"schema": _schema_in(file) if file is not None else None})
        elif info["options"].get("schema") is not None:
            print(json_text(info["options"]["schema"], indent=2))


def _schema_in(file: Path) -> object:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file} can't be read as JSON: {error}", FAILED) from None


def events(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project", show_default=True)] = "default",
    as_json: Json = False,
) -> None:
    """List the events of a project and the queues bound to each."""
    with Client() as client:
        path = f"/v2/{queue_of(f'{project}/any').project}/events"
        found: list[dict[str, Any]] = client.call("GET", path).json()["events"]
    if as_json:
        print_json(found)
    elif not found:
        console().print(f"No queue of project {project} is bound to an event.")
    else:
        filters = any("filters" in each for each in found)
        rows = [
            [each["event"], queue, each.get("filters", {}).get(queue, "")] for each in found for queue in each["queues"]
        ]
        if not filters:
            rows = [[each["event"], " ".join(each["queues"])] for each in found]
        console().print(table(("EVENT", "QUEUES", "FILTER")[: 2 + filters], rows))


def bind(
    event: Event,
    queue: Queue,
    filter_text: Annotated[
        str,
        typer.Option("--filter", metavar="CONDITION", help="Only messages whose headers satisfy it: \"region = 'eu'\""),
    ] = "",
) -> None:
    """Give a queue a copy of each message to an event of its project.

    For a queue that is bound already, this sets another filter, or without --filter removes it.
    """
    _change_binding("PUT", event, queue, {"filter": filter_text} if filter_text else None)


def unbind(event: Event, queue: Queue) -> None:
    """Undo `bind`."""
    _change_binding("DELETE", event, queue)


def _change_binding(method: str, event: str, queue: str, body: dict[str, str] | None = None) -> None:
    from urllib.parse import quote

    name = queue_of(queue)
    with Client() as client:
        path = f"/v2/{name.project}/events/{quote(event, safe='')}/queues/{quote(name.queue, safe='')}"
        client.call(method, path, json=body)
