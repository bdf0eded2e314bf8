"""`curbstone send`: publishes messages from arguments, from the lines of stdin, or from JSONL."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from io import BufferedReader
from typing import Annotated, Any, BinaryIO, TypeVar, cast

import typer

from curbstone.cli.client import Client, Refused, queue_of
from curbstone.cli.options import Json, Queue
from curbstone.cli.output import counted, print_json, progress
from curbstone.core.names import QueueName
from curbstone.exit_codes import FAILED, WRONG, CommandFailed

BATCH_MESSAGES = 500
BATCH_BYTES = 256 * 1024

# After these statuses a batch is split, because its halves may fit.
TOO_MUCH_AT_ONCE = (413, 507)

Fields = dict[str, Any]
T = TypeVar("T")


Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Give each message the metadata x-msg-x-NAME; repeatable"
    ),
]


class UniqueUntil(StrEnum):
    """When a unique name may be used again."""

    SETTLED = "settled"
    DELIVERED = "delivered"


OrderingKey = Annotated[
    str, typer.Option("--key", metavar="KEY", help="Messages of one key are delivered one at a time, in order")
]
Priority = Annotated[
    int | None, typer.Option("--priority", metavar="0-9", help="9 is delivered first; the default is 4")
]
UniqueName = Annotated[
    str, typer.Option("--unique", metavar="NAME", help="Store nothing while a message with this name is unsettled")
]
Until = Annotated[
    UniqueUntil | None,
    typer.Option("--unique-until", help="Until when no other message of this name is stored; the default is settled"),
]
ReplacedName = Annotated[str, typer.Option("--replace", metavar="NAME", help="Replace the waiting message of NAME")]
ReplaceMax = Annotated[
    float | None,
    typer.Option("--replace-max", metavar="SECONDS", help="Do not replace a message that has waited so long"),
]
Batch = Annotated[
    str, typer.Option("--batch", metavar="ID", help="The batch of the messages; a report is sent when it ends")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", metavar="N", help="The total number of messages in the batch")
]
BatchTo = Annotated[str, typer.Option("--batch-to", metavar="QUEUE", help="The queue for the report of the batch")]


def send(
    queue: Queue,
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="BODY", help="Messages. Without any, each line of stdin is a message")
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='Each line of stdin is an object {"message":…}, as `recv --json` prints it')
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of stdin is one message, byte for byte")] = False,
    content_type: Annotated[
        str, typer.Option("--content-type", metavar="TYPE", help="The content type of each message, such as text/plain")
    ] = "",
    header: Header = None,
    ttl: Annotated[float | None, typer.Option("--ttl", metavar="SECONDS", help="Seconds until it expires")] = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="SECONDS", help="Seconds until it is delivered"),
    ] = None,
    key: OrderingKey = "",
    priority: Priority = None,
    unique: UniqueName = "",
    unique_until: Until = None,
    replace: ReplacedName = "",
    replace_max: ReplaceMax = None,
    batch: Batch = "",
    batch_size: BatchSize = None,
    batch_to: BatchTo = "",
    create: Annotated[bool, typer.Option("--create", help="Create the queue if it does not exist")] = False,
    as_json: Json = False,
) -> None:
    """Publish messages, in order.

    All of them are on disk when the command ends with exit code 0. With --json, each is on disk when its id is
    printed.
    """
    from curbstone.cli.interruption import summing_up

    name = queue_of(queue)
    common = _common(content_type, header or [], ttl, delay)
    common |= _given(key=key, unique=unique, unique_until=unique_until and unique_until.value, priority=priority)
    common |= _given(replace=replace, replace_max=replace_max, batch=batch, batch_size=batch_size, batch_to=batch_to)
    if bodies:
        groups: Iterable[Iterable[Fields]] = [[{"message": body} for body in bodies]]
    elif whole:
        groups = [[_of_bytes(sys.stdin.buffer.read())]]
    else:
        groups = _of_jsonl(_lines(sys.stdin.buffer)) if jsonl else _of_lines(_lines(sys.stdin.buffer))
    sent = duplicates = 0

    def report() -> None:
        if not as_json:
            more = f"; {duplicates} left out, because others with their unique names are not settled" * bool(duplicates)
            print(f"{counted(sent, 'message')} sent{more}")

    with summing_up(report), Client() as client, progress("Sending", len(bodies) if bodies else None) as done:
        if create:
            client.queue("PUT", name)
        try:
            for some in _batches(groups):
                for answer in publish(client, name, [{**common, **item} for item in some]):
                    ids, left_out = answer["ids"], set(answer.get("duplicates", ()))
                    sent += len(ids) - len(left_out)
                    duplicates += len(left_out)
                    done(len(ids))
                    for place, message_id in enumerate(ids if as_json else ()):
                        print_json({"id": message_id} | ({"duplicate": True} if place in left_out else {}))
        except CommandFailed as error:
            if not sent:
                raise
            raise CommandFailed(f"{error} (after {counted(sent, 'message')})", error.code) from None


def publish(
    client: Client, queue: QueueName, batch: list[Fields], waiting: Callable[[float], object] = lambda _s: None
) -> Iterator[Fields]:
    """Publish a batch, in halves if it is too large. Yield the replies. For `waiting` see `Client.publish`."""

    def at_once(part: list[Fields]) -> Fields:
        answer: Fields = client.publish(queue, "/messages/batch", waiting=waiting, json=part).json()
        return answer

    return in_halves(batch, at_once)


def in_halves(batch: list[Fields], at_once: Callable[[list[Fields]], T]) -> Iterator[T]:
    """Publish a batch atomically, or its halves if it is too large. Yield what `at_once` returns for each."""
    try:
        done = at_once(batch)
    except Refused as error:
        if error.status not in TOO_MUCH_AT_ONCE or len(batch) == 1:
            raise
        middle = len(batch) // 2
        yield from in_halves(batch[:middle], at_once)
        yield from in_halves(batch[middle:], at_once)
    else:
        yield done


def _given(**options: str | float | None) -> Fields:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value not in (None, "")}


def _common(content_type: str, headers: list[str], ttl: float | None, delay: float | None) -> Fields:
    fields: Fields = {}
    if content_type:
        fields["Content-Type"] = content_type
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise CommandFailed(f"bad --header {header!r}: NAME=VALUE", WRONG)
        fields["x-msg-x-" + name.lower().removeprefix("x-msg-x-")] = value
    if ttl is not None:
        fields["ttl"] = ttl
    if delay is not None:
        fields["delay"] = delay
    return fields


def _of_bytes(body: bytes) -> Fields:
    try:
        return {"message": body.decode()}
    except UnicodeDecodeError:
        return {"message": base64.b64encode(body).decode(), "encoding": "base64"}


def _lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines as they arrive, in groups of all lines that are available without waiting."""
    begun = b""
    while chunk := cast(BufferedReader, stream).read1(BATCH_BYTES):
        *lines, begun = (begun + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if begun:
        yield [begun]


def _of_lines(groups: Iterable[list[bytes]]) -> Iterator[list[Fields]]:
    for lines in groups:
        yield [_of_bytes(line) for line in lines]


def _of_jsonl(groups: Iterable[list[bytes]]) -> Iterator[list[Fields]]:
    number = 0
    for lines in groups:
        items = []
        for line in lines:
            number += 1
            if line.strip():
                items.append(_of_json(line, number))
        yield items


def _of_json(line: bytes, number: int) -> Fields:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise CommandFailed(f"line {number} is not JSON: {error}", FAILED) from None
    if not isinstance(item, dict):
        raise CommandFailed(f"line {number} is not a JSON object", FAILED)
    of_batch = {name: item[name] for name in ("batch", "batch_size", "batch_to") if name in item}
    return publishable(item) | names_of(item) | of_batch


def names_of(message: Fields) -> Fields:
    """Return the fields of a message about its name."""
    return {name: message[name] for name in ("unique", "unique_until", "replace", "replace_max") if name in message}


def publishable(message: Fields) -> Fields:
    """Return the fields of a received message that are published again: body, metadata, options; no name, no batch."""
    kept = ("Content-Type", "message", "encoding", "ttl", "delay", "groups", "key", "priority")
    return {name: value for name, value in message.items() if name in kept or name.startswith(("x-", "ce-"))}


def _batches(groups: Iterable[Iterable[Fields]]) -> Iterator[list[Fields]]:
    """Yield the messages in batches, each small enough for one request."""
    for group in groups:
        batch: list[Fields] = []
        size = 0
        for item in group:
            item_bytes = len(str(item.get("message", "")))
            if batch and (len(batch) >= BATCH_MESSAGES or size + item_bytes > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += item_bytes
        if batch:
            yield batch
