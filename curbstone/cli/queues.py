"""`curbstone queues`: lists the queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curbstone.cli.options import Json

PROJECTS_SHOWN = 20


def queues(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project", show_default=True)] = "default",
    as_json: Json = False,
) -> None:
    """List the queues of a project."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.output import console, print_json, size, table

    if "/" in project:
        raise typer.BadParameter(f"{project!r} is no project; to see one queue: curbstone queue show {project}")
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
        on_disk = queue.get("bytes")  # missing on a cluster, which can't tell
        disk = ("?", "?") if on_disk is None else (size(on_disk), f"{100 * on_disk / queue['cap']:.0f} %")
        rows.append([queue["name"], *counts, *disk, "damaged" if queue.get("damaged") else ""])
        for name, group in queue["groups"].items():
            note = "" if group["declared"] else "group not declared"
            rows.append([f"  {name}", group["rdy"], group["wip"], group["delayed"], "", "", "", note])
    console().print(table(("QUEUE", "RDY", "WIP", "DELAYED", "CONSUMERS", "ON DISK", "OF CAP", ""), rows))
