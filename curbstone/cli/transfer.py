"""`curbstone export` and `curbstone import`: queues with their messages as JSON lines.

A queue is a line `{"queue":"project/name","options":{...}}`. Its messages follow, each an object with `queue` and the
fields that `recv --json` prints. Internals of the server are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curbstone.cli.client import Client, Refused, queue_of
from curbstone.cli.options import complete_queue
from curbstone.cli.output import counted, print_json
from curbstone.cli.send import BATCH_BYTES, BATCH_MESSAGES, in_halves, names_of, publishable
from curbstone.exit_codes import CommandFailed

if TYPE_CHECKING:
    from curbstone.core.names import QueueName

Fields = dict[str, Any]

KEY_REUSED = "#key-reused"
PARTS_OF_CAP = 64
"""A batch is at most this part of its queue's cap, because larger ones leave gaps in the log and waste space."""


def export(
    queues: Annotated[
        list[str],
        typer.Argument(
            metavar="QUEUE", help="The queues; PROJECT/ means all queues of a project", autocompletion=complete_queue
        ),
    ],
) -> None:
    """Print queues and all their messages as JSON lines.

    The queues do not change, and their messages do not count as delivered.
    """
    from curbstone.cli.dump import messages_of

    with Client() as client:
        names = [found for text in queues for found in (_queues_of(client, text) if text.endswith("/") else [text])]
        for text in names:
            name = queue_of(text)
            options = {key: value for key, value in client.json("GET", name)["options"].items() if value is not None}
            print_json({"queue": str(name), "options": options})
            for message in messages_of(client, name):
                print_json({"queue": str(name), **message})


def import_() -> None:
    """Create queues and publish messages from the output of `export`.

    The output is read from stdin. A message is due, and expires, at the same time as before. If you import the same
    lines again within 5 minutes, no message is published twice, with two exceptions: on a cluster all of them are, and
    a batch can be that had to be split because its queue was nearly full.
    """
    from curbstone.cli.interruption import summing_up

    client = Client()
    work = _Import(client)
    # The client is closed before the summary is printed: an interruption at the end of the input is reported, too.
    with summing_up(work.report), client:
        work.begin()
        for queue, batch in _batches(_lines(sys.stdin.buffer)):
            name = queue_of(queue)
            if "options" in batch[0]:
                client.queue("PUT", name, json=batch[0]["options"])
                continue
            for count in in_halves(batch, partial(work.publish, name)):
                work.sent += count


class _Import:
    """One run of `import`, with its counts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keeps_keys = True
        self._max_ttl_s = math.inf
        self.sent = 0
        self.expired = 0
        self.prolonged = 0
        """Messages that may live longer than before, because the server allows no such `ttl`."""
        self.duplicates = 0
        """Messages that were left out, because the queue had others with their unique names."""
        self._names: set[tuple[QueueName, str]] = set()
        """The unique names of the messages so far, by queue; later messages are published without it."""

    def begin(self) -> None:
        """Ask the server for its limits."""
        health = self._client.call("GET", "/healthz").json()
        self._keeps_keys = "keys" in health["engine"]["capabilities"]
        self._max_ttl_s = health.get("max_ttl", math.inf)

    def publish(self, name: QueueName, batch: list[Fields]) -> int:
        """Publish messages atomically and only once. Return how many."""
        # The ids of the messages are in the key, so that it differs for batches with equal contents.
        key = hashlib.sha256(json.dumps([batch, str(name)], sort_keys=True).encode()).hexdigest()
        headers = {"idempotency-key": f'"{key}"'} if self._keeps_keys else {}
        now_ms = time.time() * 1000
        living = [line for line in batch if not 0 < _ms(line, "expiry") <= now_ms]
        messages = [self._on_time(line, now_ms) | self._name_of(name, line) for line in living]
        if messages:
            try:
                answer = self._client.publish(name, "/messages/batch", json=messages, headers=headers).json()
                self.duplicates += len(answer.get("duplicates", ()))
            except Refused as error:
                if not error.kind.endswith(KEY_REUSED):  # it was published before, with other delays or ttls
                    raise
        self.expired += len(batch) - len(living)
        for line, message in zip(living, messages, strict=True):
            self.prolonged += _ms(line, "expiry") > 0 and "ttl" not in message
        return len(messages)

    def _on_time(self, line: Fields, now_ms: float) -> Fields:
        """Return the message of a line, which is due and expires at the original times."""
        message = publishable(line)
        if (delay_ms := _ms(line, "due") - now_ms) > 0:
            message["delay"] = delay_ms / 1000
        if 0 < (ttl_ms := _ms(line, "expiry") - now_ms) <= self._max_ttl_s * 1000:
            message["ttl"] = ttl_ms / 1000
        return message

    def _name_of(self, queue: QueueName, line: Fields) -> Fields:
        """Return the fields of the unique name of a message, if it is the first one in its queue with this name.

        The option to replace others is removed, so that none of these lines replaces another one.
        """
        if "unique" not in line:
            return {}
        name = queue, str(line["unique"])
        is_first = name not in self._names
        self._names.add(name)
        return names_of(line) if is_first else {}

    def report(self) -> None:
        """Print what was done."""
        parts = [f"{counted(self.sent - self.duplicates, 'message')} imported"]
        if self.duplicates:
            parts.append(f"{self.duplicates} left out, because others with their unique names are not settled")
        if self.expired:
            parts.append(f"{self.expired} had expired")
        if self.prolonged:
            parts.append(f"{self.prolonged} may live longer than before: --max-ttl allows no such ttl")
        if not self._keeps_keys:
            parts.append("a repeated import would publish them again")
        print("; ".join(parts))


def _batch_bytes(options: Any) -> int:
    """Return the largest batch for a queue with these options, which are not validated here."""
    cap = options.get("cap") if isinstance(options, dict) else None
    return min(BATCH_BYTES, cap // PARTS_OF_CAP) if isinstance(cap, int) else BATCH_BYTES


def _ms(line: Fields, name: str) -> int:
    """Return a time in ms since 1970, or 0 if there is none."""
    value = line.get(name)
    return value if isinstance(value, int) else 0


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
            raise CommandFailed(f"line {number} is not an object with a field queue, as export writes them")
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
