"""Converts messages to AMQP and back. Pure.

The header block of a message is one AMQP header, unchanged, because AMQP's tables preserve neither the order of headers
nor repeated names. The table of a message from another program is converted to header lines.
"""

from __future__ import annotations

from functools import lru_cache

from curbstone.core import headers
from curbstone.core.message import Message
from curbstone.core.orders import level_in, priority_of
from curbstone.rabbit.amqp.port import Arrived, Properties
from curbstone.rabbit.shared.ids import time_of

BLOCK = "x-cs-headers"
DUE = "x-cs-due"
EXPIRES = "x-cs-expires"
TRIES = "x-cs-tries"
OWN_PREFIX = "x-cs-"
_OF_THE_BROKER = {
    *("x-delivery-count", "x-acquired-count", "x-death", "x-stream-offset", "CC", "BCC"),
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
}
_SHORT_MAX = 255
_BEHIND = Properties._fields.index("correlation_id")
_NOTHING = (None,) * (len(Properties._fields) - _BEHIND)


def priority_in(version: str) -> str:
    """Return the effect of priorities in the quorum queues of a version of RabbitMQ; see `EngineInfo.priority`."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()) or int(major) < 4:
        return "none"
    return "strict" if (int(major), int(minor)) >= (4, 3) else "two-levels"


def properties_of(
    message: Message, message_id: str, *, now_ms: int, due_ms: int = 0, tries: int = 0, copies: list[str] | None = None
) -> Properties:
    """Return the properties of a message that is published now. `copies` are the other queues that get it."""
    table: dict[str, object] = {}
    if message.headers:
        table[BLOCK] = message.headers
    if due_ms:
        table[DUE] = due_ms
    if tries:
        table[TRIES] = tries
    expiration: str | None = None
    if message.expires_ms:
        table[EXPIRES] = message.expires_ms
        if not due_ms:
            expiration = str(max(message.expires_ms - now_ms, 0))
    if copies:
        table["BCC"] = copies
    level = level_in(message.headers)
    return Properties(
        table,
        message_id,
        _content_type(message.headers),
        expiration,
        message.timestamp_ms // 1000,
        priority=priority_of(level) if level else None,
    )


@lru_cache(maxsize=1024)
def _content_type(block: bytes) -> str | None:
    """Return the content type of a header block, for other programs that read the message."""
    if b"content-type:" not in block:
        return None
    found = next((value for name, value in headers.decode(block) if name == headers.CONTENT_TYPE), None)
    return found if found and len(found.encode()) <= _SHORT_MAX else None


def number_of(properties: Properties) -> int | None:
    """Return the number in a message id, or None if the id is not one of ours."""
    _uid, dash, number = (properties.message_id or "").rpartition("-")
    return int(number) if dash and number.isascii() and number.isdigit() and len(number) < 20 else None


def uid_of(properties: Properties) -> str:
    """Return the uid of the queue that a message was published to; empty for an event."""
    return (properties.message_id or "").rpartition("-")[0]


def message_of(arrived: Arrived, number: int) -> Message:
    """Return the message that arrived, under its number."""
    table = arrived.properties.headers
    block = table.get(BLOCK)
    if block is None:
        block = _foreign_block(arrived.properties)
    message = Message(arrived.body, block if isinstance(block, bytes) else str(block).encode())
    message.seq = number
    message.timestamp_ms = time_of(number)
    message.expires_ms = whole(table.get(EXPIRES))
    return message


def tries_of(properties: Properties) -> int:
    """Return how often a message was delivered before, all its copies included."""
    table = properties.headers
    counted = table.get("x-acquired-count", table.get("x-delivery-count"))
    return whole(table.get(TRIES)) + whole(counted)


def due_of(properties: Properties) -> int:
    """Return the wall-clock time in ms before which a message must not be delivered, or 0."""
    return whole(properties.headers.get(DUE))


def whole(value: object) -> int:
    """Return the number in a value of a table, or 0 for anything else."""
    return int(value) if isinstance(value, int) else 0


def _foreign_block(properties: Properties) -> bytes:
    """Return a header block for a message without one, such as that of another program."""
    if not properties.headers and properties.content_type is None and properties[_BEHIND:] == _NOTHING:
        return b""
    lines: list[tuple[str, str]] = []
    if properties.content_type:
        lines.append((headers.CONTENT_TYPE, properties.content_type))
    for name, value in properties.headers.items():
        if name not in _OF_THE_BROKER and not name.startswith(OWN_PREFIX):
            lines.append((name, value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)))
    for name, text in (
        ("amqp-correlation-id", properties.correlation_id),
        ("amqp-reply-to", properties.reply_to),
        ("amqp-type", properties.type),
        ("amqp-app-id", properties.app_id),
        ("amqp-priority", properties.priority),
    ):
        if text is not None:
            lines.append((name, str(text)))
    return headers.encode(lines)
