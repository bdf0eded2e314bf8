"""`curbstone history`: what happened to a message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import print_json

SENTENCES = {
    "published": "published, {bytes} bytes",
    "released": "requeued, number of deliveries: {tries}",
    "settled": "settled",
    "rejected": "rejected",
    "dead": "dead: max_tries reached",
    "expired": "expired",
    "purged": "purged",
    "skipped": "dropped, because the queue was full",
    "replaced": "replaced by a later message of its name",
}
REASONS = {"rejected": "rejected", "max_tries": "max_tries reached", "expired": "expired"}
UNDONE = "restored by an undo"
STATES = {
    "rdy": "it is ready",
    "wip": "it is delivered and not settled",
    "delayed": "it is delayed",
    "gone": "it is gone",
}


def history(
    queue: Queue,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a message")],
    as_json: Json = False,
) -> None:
    """Show what happened to a message, as far back as the log reaches, and the queues it was in."""
    tail = f"/messages/{quote(message_id, safe='')}/history"
    events: list[dict[str, Any]] = []
    position = 0
    with Client() as client:
        while True:
            page = client.json("GET", queue_of(queue), tail, params={"from": position}, timeout=None)
            events += page["events"]
            if "next" not in page:
                break
            position = page["next"]
    if as_json:
        print_json(page | {"events": events})
        return
    ended: set[str] = set()
    for event in events:
        group = event.get("group", "")
        is_undone = event["event"] == "released" and group in ended
        (ended.add if event["event"] in ("settled", "purged") else ended.discard)(group)
        if source := event.get("from"):
            print(f"{_time(source.get('time', event['time']))}  {_origin(source)}")
        print(f"{_time(event['time'])}  {_sentence(event, UNDONE if is_undone else SENTENCES[event['event']])}")
    print(f"{'now':23}  {STATES[page['state']]}")


def _origin(source: dict[str, Any]) -> str:
    """Return the sentence about the queue that a message was in before: it died there, or was redriven from there."""
    if "reason" not in source:
        return f"redriven from {_place(source)}"
    tries = source.get("tries", 0)
    after = f" after {tries} {'delivery' if tries == 1 else 'deliveries'}" if tries else ""
    return f"died in {_place(source)}{after}: {_reason(source)}"


def _place(place: dict[str, Any]) -> str:
    return f"{place['queue']} as {place['id']}" if "id" in place else str(place["queue"])


def _reason(death: dict[str, Any]) -> str:
    return str(death.get("error") or REASONS[death["reason"]])


def _sentence(event: dict[str, Any], words: str) -> str:
    text = words.format_map(event)
    if target := event.get("to"):
        text = f"redriven to {_place(target)}"
        if "reason" in event:
            text = f"dead-lettered to {_place(target)}: {_reason(event)}"
    if "due" in event:
        text += f", to be delivered from {_time(event['due'])} on"
    return f"{text} (group {event['group']})" if event.get("group") else text


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
