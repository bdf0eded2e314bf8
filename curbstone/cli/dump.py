"""`curbstone dump QUEUE`: what a queue holds, a line for each message, as Curb writes its file.

    001⇥rdy⇥hello
    002⇥wip⇥two lines\\nin one

Number, state and body, separated by tabs; oldest first. A body is escaped so that a line is a message and nothing in
it reaches a terminal as a command: `\\\\`, `\\t`, `\\n`, `\\r`, and `\\xHH` for every other byte that is not part of
printable UTF-8 text. It asks a running server over HTTP and changes nothing.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from curbstone.cli.options import DEFAULT_SERVER, Queue, ServerUrl

if TYPE_CHECKING:
    from curbstone.cli.client import Client
    from curbstone.core.names import QueueName

PAGE = 50

# Curb's words have three letters, and to it a message whose time has not come is rdy.
_STATES = {"delayed": "rdy"}
_SHORT = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def dump(queue: Queue, server: ServerUrl = DEFAULT_SERVER) -> int:
    """Print all messages of a queue, one line each: number, state and escaped body, separated by tabs."""
    from curbstone.cli.client import Client, queue_of

    name = queue_of(queue)
    try:
        with Client(server) as client:
            for message in messages_of(client, name, encoding="base64"):
                sys.stdout.buffer.write(line_of(message).encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough. What is buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def line_of(message: dict[str, Any]) -> str:
    """Return the line for a message of the HTTP interface's JSON with its body in base64."""
    number = int(message["id"].rpartition("-")[2])
    state = message["state"]
    return f"{number:03d}\t{_STATES.get(state, state)}\t{escape(base64.b64decode(message['message']))}\n"


def escape(body: bytes) -> str:
    """Return a body as one line of printable text, of which the body can be made again; see the module's text."""
    parts = []
    for char in body.decode("utf-8", "surrogateescape"):
        if char in _SHORT:
            parts.append(_SHORT[char])
        elif char.isprintable():
            parts.append(char)
        else:
            parts += [f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape")]
    return "".join(parts)


def messages_of(client: Client, name: QueueName, **asked: str) -> Iterator[dict[str, Any]]:
    """Yield the messages, a page at a time; a page of large ones has fewer than were asked for."""
    parameters = {"limit": str(PAGE), "after": "", **asked}
    while page := client.json("GET", name, "/messages", params=parameters)["messages"]:
        yield from page
        parameters["after"] = page[-1]["id"]
