"""Durable subscriptions to a topic: a queue bound to it, which waits while its subscriber is away.

Three ways to ask for one, as three brokers have them, with the queue each means in the home of the client:

| headers of SUBSCRIBE | queue |
|---|---|
| `x-queue-name:Q` (RabbitMQ) | `Q` |
| `activemq.subscriptionName:N`, `durable-subscription-name:N` and their misspellings | `{client-id}.N` |
| `durable:true` or `persistent:true`, with `id:N` | `{client-id}.N` |

The client-id is that of CONNECT; without one the queue is `N`. Whoever subscribes under the same name shares the queue.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, queue_name
from curbstone.stomp import header_values
from curbstone.stomp.codec import Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError

QUEUE = "x-queue-name"
NAMES = (
    "activemq.subscriptionName",
    "activemq.subcriptionName",  # as ActiveMQ's own documentation has it
    "durable-subscription-name",
    "durable-subscriber-name",
)
FLAGS = ("durable", "persistent")
HEADERS = frozenset((QUEUE, *NAMES, *FLAGS))


def is_wanted(head: Head) -> bool:
    """Whether a SUBSCRIBE or UNSUBSCRIBE is about a durable subscription; raise ProtocolError."""
    if any(head.headers.get(name) for name in (QUEUE, *NAMES)):
        return True
    return any([header_values.flag(head, name) for name in FLAGS])


def queue_of(head: Head, destination: Destination, client_id: str, home: str) -> QueueName | None:
    """Return the queue of the durable subscription that a SUBSCRIBE asks for, None if it wants none."""
    if destination.kind is not Kind.TOPIC:
        if head.headers.get(QUEUE):
            raise ProtocolError(f"{QUEUE} is for topics; here the destination names the queue", head.lines[QUEUE])
        return None
    if not is_wanted(head):
        return None
    header = next((name for name in (QUEUE, *NAMES) if head.headers.get(name)), "id")
    name = header_values.required(head, header)
    if header != QUEUE and client_id:
        name = f"{client_id}.{name}"
    try:
        return queue_name(name, home)
    except BadRequest as error:
        raise ProtocolError(
            f"{header} names the queue of a durable subscription: {error}", head.lines[header]
        ) from None
