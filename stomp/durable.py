"""Durable subscriptions to a topic: a queue bound to the topic, which collects messages while its subscriber is away.

A client can request one in three ways, taken from three brokers. Each names a queue in the client's home project:

| headers of SUBSCRIBE | queue |
|---|---|
| `x-queue-name:Q` (RabbitMQ) | `Q` |
| `activemq.subscriptionName:N`, `durable-subscription-name:N` and their misspellings | `{client-id}.N` |
| `durable:true` or `persistent:true`, with `id:N` | `{client-id}.N`; without a client-id `N:{topic}` |

The client-id is that of CONNECT; without one the queue of the second way is `N`. Many clients number their
subscriptions in the same way, so without a client-id the topic is part of the name, as in RabbitMQ. Clients that
subscribe under the same name share the queue.
"""

from __future__ import annotations

import re
from hashlib import sha256

from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, queue_name
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError

QUEUE = "x-queue-name"
NAMES = (
    "activemq.subscriptionName",
    "activemq.subcriptionName",  # as ActiveMQ's own documentation spells it
    "durable-subscription-name",
    "durable-subscriber-name",
)
FLAGS = ("durable", "persistent")
HEADERS = frozenset((QUEUE, *NAMES, *FLAGS))

_NAME_CHARS_MAX = 200
_HASH_CHARS = 16
_PLAIN_EVENT = re.compile(r"[A-Za-z0-9._-]+")
"""Events that can be part of a queue's name. They have no colon, so that the event is the part after the last colon."""


def is_wanted(head: Head) -> bool:
    """Return whether a SUBSCRIBE or UNSUBSCRIBE is about a durable subscription; raise ProtocolError."""
    if any(head.headers.get(name) for name in (QUEUE, *NAMES)):
        return True
    return any([header_values.flag(head, name) for name in FLAGS])


def is_named(head: Head) -> bool:
    """Return whether a header names the durable subscription, and not only its id."""
    return _naming_header(head) != "id"


def queue_of(head: Head, destination: Destination, client_id: str, home: str) -> QueueName | None:
    """Return the queue of the durable subscription that a SUBSCRIBE requests, or None."""
    if destination.kind is not Kind.TOPIC:
        if head.headers.get(QUEUE):
            raise ProtocolError(f"{QUEUE} is for topics; the destination names the queue", head.lines[QUEUE])
        return None
    return name_of(head, destination.event, client_id, home) if is_wanted(head) else None


def name_of(head: Head, event: str, client_id: str, home: str) -> QueueName:
    """Return the queue of the durable subscription to an event that a frame is about; raise ProtocolError."""
    header = _naming_header(head)
    name = header_values.required(head, header)
    if header != QUEUE and client_id:
        name = f"{client_id}.{name}"
    elif header == "id":
        name = _of_topic(name, event)
    try:
        return queue_name(name, home)
    except BadRequest as error:
        raise ProtocolError(
            f"{header} names the queue of a durable subscription: {error}", head.lines[header]
        ) from None


def earlier_name(head: Head, client_id: str, home: str) -> QueueName | None:
    """Return the queue's name in versions whose names did not contain the topic; None if it is the same."""
    if client_id or is_named(head):
        return None
    try:
        return queue_name(header_values.required(head, "id"), home)
    except BadRequest:
        return None


def _naming_header(head: Head) -> str:
    return next((name for name in (QUEUE, *NAMES) if head.headers.get(name)), "id")


def _of_topic(identifier: str, event: str) -> str:
    if _PLAIN_EVENT.fullmatch(event) and len(identifier) + len(event) < _NAME_CHARS_MAX:
        return f"{identifier}:{event}"
    digest = sha256(f"{identifier}\n{event}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{identifier[: _NAME_CHARS_MAX - _HASH_CHARS - 1]}:{digest}"
