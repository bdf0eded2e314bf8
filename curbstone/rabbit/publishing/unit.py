"""The encoding of a unit: all messages of a transaction as one message in RabbitMQ. Pure.

    u32 size of the head, big-endian; the head; header block and body of each message, in order

The head is JSON: the gateway that created the unit, the number of the unit, and for each message [project, queue, uid
of the queue or routing key of the event, number, due, expires, groups, size of the header block, size of the body].
Times are in ms, 0 for none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.orders import orders_of
from curbstone.rabbit.shared.ids import time_of

UNIT_BYTES_MAX = 12 * 1024 * 1024
"""RabbitMQ 4 takes messages of up to 16 MiB."""

_LENGTH_BYTES = 4


class Addressed(NamedTuple):
    """A message with its number, and its destination."""

    name: QueueName | None
    """None for an event."""
    place: str
    """The uid of the queue, or the routing key of the event."""
    message: Message
    due_ms: int = 0


class Unit(NamedTuple):
    """Messages that are published atomically."""

    origin: str
    number: int
    messages: Sequence[Addressed]


def encode(unit: Unit) -> bytes:
    """Return the bytes of a unit."""
    rows: list[object] = []
    parts: list[bytes] = []
    for name, place, message, due_ms in unit.messages:
        project, queue = name or ("", "")
        sizes = (len(message.headers), len(message.body))
        rows.append([project, queue, place, message.seq, due_ms, message.expires_ms, message.groups, *sizes])
        parts += (message.headers, message.body)
    head = json.dumps([unit.origin, unit.number, rows], separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "big"), head, *parts])


def decode(data: bytes) -> Unit:
    """Return the unit in these bytes. Raise ValueError if they are malformed."""
    at = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    messages = []
    try:
        origin, number, rows = json.loads(data[_LENGTH_BYTES:at])
        for project, queue, place, seq, due_ms, expires_ms, groups, block_bytes, body_bytes in rows:
            end = at + block_bytes + body_bytes
            message = Message(
                data[at + block_bytes : end], data[at : at + block_bytes], orders_of(groups=tuple(groups))
            )
            message.seq, message.expires_ms, message.timestamp_ms = seq, expires_ms, time_of(seq)
            messages.append(Addressed(QueueName(project, queue) if queue else None, place, message, due_ms))
            at = end
    except TypeError as error:
        raise ValueError(f"not a unit: {error}") from None
    if at != len(data):
        raise ValueError(f"a unit of {at} bytes in {len(data)} bytes of data")
    return Unit(origin, number, messages)
