"""`curbstone dump QUEUE`: prints a queue, a line for each message, in the form of Curb's file.

    001⇥rdy⇥hello
    002⇥wip⇥two lines\\nin one

The columns are number, state and body, separated by tabs; the oldest message is first. Bodies are escaped so that
each message is one line, and so that nothing in them acts as a command on a terminal: `\\\\`, `\\t`, `\\n`, `\\r`, and
`\\xHH` for every other byte that is not part of printable UTF-8 text. The command asks a running server over HTTP and
changes nothing.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from curbstone.cli.client import Client, queue_of
from curbstone.cli.options import Queue

if TYPE_CHECKING:
    from curbstone.core.names import QueueName

PAGE = 50

# In Curb all states have three letters, and a delayed message is rdy.
_STATES = {"delayed": "rdy"}
_SHORT = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def dump(queue: Queue) -> int:
    """Print all messages of a queue, each on one line.

    A line has the number, the state and the escaped body of a message, separated by tabs.
    """
    name = queue_of(queue)
    try:
        with Client() as client:
            for message in messages_of(client, name, encoding="base64"):
                sys.stdout.buffer.write(line_of(message).encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, Python would fail again at exit when it flushes its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def line_of(message: dict[str, Any]) -> str:
    """Return the line of a message, which is given as the JSON of the HTTP interface with a base64 body."""
    number = int(message["id"].rpartition("-")[2])
    state = message["state"]
    return f"{number:03d}\t{_STATES.get(state, state)}\t{escape(base64.b64decode(message['message']))}\n"


def escape(body: bytes) -> str:
    """Return a body as one line of printable text, from which the body can be restored; see the module's docstring."""
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
    """Yield the messages, page by page. A page of large messages has fewer than were asked for."""
    parameters = {"limit": str(PAGE), "after": "", **asked}
    while page := client.json("GET", name, "/messages", params=parameters)["messages"]:
        yield from page
        parameters["after"] = page[-1]["id"]
