"""`curbstone queue create|set|show|delete`: a queue and its options."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from curbstone.cli.client import Client, Refused, queue_of
from curbstone.cli.connection import with_options
from curbstone.cli.help import Command, Group
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import console, counted, print_json, size, table
from curbstone.cli.parameters import add_parameters
from curbstone.exit_codes import FAILED, WRONG, CommandFailed

QUEUE_OPTIONS = {
    "cap": ("SIZE", "The maximum number of bytes on disk, as in 64MiB"),
    "max_message_size": ("SIZE", "The largest message, as in 1MiB"),
    "ttl": ("SECONDS", "How long until a message expires; 0 for never"),
    "max_tries": ("N", "The maximum number of deliveries before a message is dead; 0 for no limit"),
    "dead_letter": ("QUEUE", "The queue for dead messages"),
    "nack_delay": ("SECONDS", "The delay of a requeued message"),
    "nack_delay_max": ("SECONDS", "The maximum of this delay, which doubles with each try"),
    "lease": ("SECONDS", "The default duration of a lease"),
    "groups": ("NAMES", "Consumer groups, separated by commas"),
    "overflow": ("HOW", "What a full queue does: refuse, or drop-oldest"),
    "unused": ("SECONDS", "After how long without use the queue is deleted"),
    "idempotency_window": ("SECONDS", "How long an idempotency key is kept"),
    "undo": ("SECONDS", "How long settled messages can be restored"),
    "oldest_every": ("N", "Deliver the oldest message, whatever its priority, every Nth time"),
    "in_flight": ("N", "The maximum number of messages in flight per group; 0 for no limit"),
    "rate": ("NUMBER", "The maximum deliveries per second and group; 0 for no limit"),
    "burst": ("N", "The maximum burst of deliveries after a pause; 0 for those of a second"),
    "key_limit": ("N", "The maximum number of messages of a key in flight; 1 keeps their order, 0 for no limit"),
    "key_rate": ("NUMBER", "The maximum deliveries per second and key; 0 for no limit"),
    "key_burst": ("N", "The maximum burst of deliveries of a key after a pause; 0 for those of a second"),
    "fair": ("yes|no", "Whether the key with the fewest messages in flight is next"),
}
"""The metavar and the help of each option. `paused` and `schema` have commands of their own."""

_NUMBERS = ("SECONDS", "N", "NUMBER")

queue = typer.Typer(name="queue", cls=Group, help="Create, change, show and delete a queue.")


def _with_queue_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each queue option to a command, which is called with the given ones as JSON values."""

    @functools.wraps(function)
    def call(queue: str, **options: Any) -> None:
        given = {name: value for name in QUEUE_OPTIONS if (value := options.pop(name)) is not None}
        function(queue, {name: _value(name, text) for name, text in given.items()}, **options)

    added = {
        name: Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=text)]
        for name, (metavar, text) in QUEUE_OPTIONS.items()
    }
    return add_parameters(call, function, added, None, without="options")


def _value(name: str, text: str) -> object:
    if text == "none":
        return {"groups": [], "dead_letter": "", "unused": None, "fair": False}.get(name, 0)
    if name == "fair":
        if text not in ("yes", "no"):
            raise CommandFailed(f"bad --fair {text!r}: yes or no", WRONG)
        return text == "yes"
    if name == "groups":
        return [each.strip() for each in text.split(",") if each.strip()]
    if QUEUE_OPTIONS[name][0] not in _NUMBERS:
        return text
    try:
        number = float(text)
    except ValueError:
        raise CommandFailed(f"bad --{name.replace('_', '-')} {text!r}: expected a number", WRONG) from None
    return int(number) if number.is_integer() else number


@queue.command("create", cls=Command)
@with_options
@_with_queue_options
def create(queue: Queue, options: dict[str, Any]) -> None:
    """Create a queue with these options. All others have the server's defaults.

    It is an error if the queue exists.
    """
    name = queue_of(queue)
    with Client() as client:
        try:
            client.queue("GET", name)
        except Refused as refused:
            if refused.status != 404:
                raise
        else:
            raise CommandFailed(f"queue {name} exists; change its options with: curbstone queue set", FAILED)
        client.queue("PUT", name, json=options)
    print(f"queue {name} created")


@queue.command("set", cls=Command)
@with_options
@_with_queue_options
def set_options(queue: Queue, options: dict[str, Any]) -> None:
    """Change options of a queue; all others stay unchanged. The value `none` removes a limit."""
    if not options:
        raise typer.BadParameter("no option to set")
    name = queue_of(queue)
    with Client() as client:
        client.queue("GET", name)  # fails if there is no such queue, which a PUT would create
        client.queue("PUT", name, json=options)
    print(f"queue {name}: {', '.join(f'{option} = {_shown(option, value)}' for option, value in options.items())}")


@queue.command("show", cls=Command)
@with_options
def show(queue: Queue, as_json: Json = False) -> None:
    """Show a queue: its messages, its size on disk, its groups, bindings and options."""
    with Client() as client:
        info = client.json("GET", queue_of(queue))
    if as_json:
        print_json(info)
        return
    figures = {
        "queue": f"{info['project']}/{info['name']}",
        "ready": info["rdy"],
        "in flight": info["wip"],
        "delayed": info.get("delayed", "?"),
        "consumers": info["consumers"],
    }
    if "bytes" in info:
        share = 100 * info["bytes"] / info["cap"]
        figures["on disk"] = f"{size(info['bytes'])} ({share:.0f} % of the cap)"
    if held_back := info.get("held_back"):
        limit = "their keys" if info["limited_by"] == "keys" else f"the option {info['limited_by']}"
        figures["held back"] = f"{held_back} of those ready, by {limit}"
    if batches := info.get("batches"):
        figures["batches"] = f"{batches} not ended"
    if by_priority := info.get("by_priority"):
        figures["by priority"] = ", ".join([f"{priority}: {count}" for priority, count in by_priority.items()])
    for group, counts in info["groups"].items():
        figures[f"group {group}"] = f"{counts['rdy']} ready, {counts['wip']} in flight, {counts['delayed']} delayed"
    if info.get("bindings"):
        filters = {event: f" ({text})" for event, text in info.get("filters", {}).items()}
        figures["events"] = ", ".join([event + filters.get(event, "") for event in info["bindings"]])
    if info.get("damaged"):
        figures["damaged"] = "; ".join(info["damaged"])
    rows = [*figures.items(), *((f"  {name}", _shown(name, value)) for name, value in info["options"].items())]
    console().print(table(("", ""), [[name, str(value)] for name, value in rows], header=False))


@queue.command("delete", cls=Command)
@with_options
def delete(
    queue: Queue, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False
) -> None:
    """Delete a queue with all its messages. On a terminal, the command asks for confirmation first."""
    name = queue_of(queue)
    with Client() as client:
        info = client.json("GET", name)
        held = info["rdy"] + info["wip"] + info.get("delayed", 0)
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Delete queue {name} with {counted(held, 'message')} for good?", abort=True)
        client.queue("DELETE", name)
    print(f"queue {name} deleted, with {counted(held, 'message')}")


def _shown(name: str, value: object) -> str:
    kind = QUEUE_OPTIONS[name][0] if name in QUEUE_OPTIONS else ""
    if value in (None, "", []) or (value == 0 and name in ("ttl", "max_tries", "undo")):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return ("yes" if value else "no") if kind == "yes|no" else str(value).lower()
    if isinstance(value, int) and kind == "SIZE":
        return f"{size(value)} ({value} bytes)"
    return f"{value} s" if kind == "SECONDS" else str(value)
