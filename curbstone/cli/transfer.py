"""`curbstone export` and `curbstone import`: queues with their messages as JSON lines, to be moved elsewhere.

A queue is a line `{"queue":"project/name","options":{...}}`. Its messages follow, each an object with `queue` and the
fields that `recv --json` prints. Internals of the server, which mean nothing to another broker, are left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.options import DEFAULT_SERVER, ServerUrl, complete_queue
from curbstone.cli.send import BATCH_BYTES, BATCH_MESSAGES, in_halves, publishable
from curbstone.exit_codes import CommandFailed

if TYPE_CHECKING:
    from curbstone.cli.client import Client
    from curbstone.core.names import QueueName

Fields = dict[str, Any]

KEY_REUSED = "#key-reused"
PARTS_OF_CAP = 64
"""A batch is at most this part of its queue's cap, because larger ones leave gaps in the log and so waste room."""


def export(
    queues: Annotated[
        list[str],
        typer.Argument(metavar="QUEUE", help="Queues, or PROJECT/ for all of one", autocompletion=complete_queue),
    ],
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Print queues and all their messages as JSON lines. Nothing changes, and nothing is delivered by it."""
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.dump import messages_of
    from curbstone.cli.output import print_json

    with Client(server) as client:
        names = [found for text in queues for found in (_queues_of(client, text) if text.endswith("/") else [text])]
        for text in names:
            name = queue_of(text)
            options = {key: value for key, value in client.json("GET", name)["options"].items() if value is not None}
            print_json({"queue": str(name), "options": options})
            for message in messages_of(client, name):
                print_json({"queue": str(name), **message})


def import_(server: ServerUrl = DEFAULT_SERVER) -> None:
    """Read what `export` printed from stdin: make the queues, and publish the messages.

    What was delayed is delayed until the same time. Done again with the same lines within 5 minutes, nothing is
    published twice, but on a cluster, which keeps no keys, and of a batch for which a queue was too full at first.
    """
    from curbstone.cli.client import Client, queue_of
    from curbstone.cli.interruption import summing_up

    sent = 0
    keeps_keys = True

    def say() -> None:
        print(f"{sent} messages imported" + ("" if keeps_keys else "; done again, they would be published once more"))

    with summing_up(say), Client(server) as client:
        keeps_keys = "keys" in client.call("GET", "/healthz").json()["engine"]["capabilities"]
        for queue, batch in _batches(_lines(sys.stdin.buffer)):
            name = queue_of(queue)
            if "options" in batch[0]:
                client.queue("PUT", name, json=batch[0]["options"])
                continue
            for count in in_halves(batch, partial(_publish, client, name, keeps_keys)):
                sent += count


def _publish(client: Client, name: QueueName, keeps_keys: bool, batch: list[Fields]) -> int:
    """Publish messages, all or nothing, and only once. Return how many."""
    from curbstone.cli.client import Refused

    # The ids of the messages are in the key, so that it differs for batches with equal contents.
    key = hashlib.sha256(json.dumps([batch, str(name)], sort_keys=True).encode()).hexdigest()
    headers = {"idempotency-key": f'"{key}"'} if keeps_keys else {}
    now_ms = time.time() * 1000
    try:
        client.publish(name, "/messages/batch", json=[_on_time(line, now_ms) for line in batch], headers=headers)
    except Refused as error:
        if not error.kind.endswith(KEY_REUSED):  # it was published before, with other delays
            raise
    return len(batch)


def _batch_bytes(options: Any) -> int:
    """Return the largest batch for a queue with these options. Errors in the options are left to the server."""
    cap = options.get("cap") if isinstance(options, dict) else None
    return min(BATCH_BYTES, cap // PARTS_OF_CAP) if isinstance(cap, int) else BATCH_BYTES


def _on_time(line: Fields, now_ms: float) -> Fields:
    """Return the message of a line, with a delay that ends when it was due originally."""
    due_ms = line.get("due")
    if not isinstance(due_ms, int) or due_ms <= now_ms:
        return publishable(line)
    return {**publishable(line), "delay": (due_ms - now_ms) / 1000}


def _queues_of(client: Any, project: str) -> Iterator[str]:
    for queue in client.call("GET", f"/v2/{project.rstrip('/')}/queues").json()["queues"]:
        yield f"{project}{queue['name']}"


def _lines(stream: Iterable[bytes]) -> Iterator[Fields]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise CommandFailed(f"line {number} is not JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("queue"), str):
            raise CommandFailed(f"line {number} is not an object with a member queue, as export writes them")
        yield fields


def _batches(lines: Iterable[Fields]) -> Iterator[tuple[str, list[Fields]]]:
    """Yield the contents of one request each: the options of a queue, or messages of one queue."""
    batch: list[Fields] = []
    queue, size, bytes_max = "", 0, BATCH_BYTES
    for fields in lines:
        name = fields.pop("queue")
        is_options = "options" in fields
        item_bytes = len(str(fields.get("message", "")))
        if batch and (is_options or name != queue or len(batch) >= BATCH_MESSAGES or size + item_bytes > bytes_max):
            yield queue, batch
            batch, size = [], 0
        if is_options:
            bytes_max = _batch_bytes(fields["options"])
            yield name, [fields]
            continue
        queue = name
        batch.append(fields)
        size += item_bytes
    if batch:
        yield queue, batch
