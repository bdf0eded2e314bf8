"""Durable subscriptions to a topic: a queue bound to the topic, which collects messages while its subscriber is away.

There are three ways to ask for one, taken from three brokers. Each names a queue in the client's home project:

| headers of SUBSCRIBE | queue |
|---|---|
| `x-queue-name:Q` (RabbitMQ) | `Q` |
| `activemq.subscriptionName:N`, `durable-subscription-name:N` and their misspellings | `{client-id}.N` |
| `durable:true` or `persistent:true`, with `id:N` | `{client-id}.N` |

The client-id comes from CONNECT; without one the queue is `N`. Clients that subscribe under the same name share the
queue.
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
    "activemq.subcriptionName",  # as ActiveMQ's own documentation spells it
    "durable-subscription-name",
    "durable-subscriber-name",
)
FLAGS = ("durable", "persistent")
HEADERS = frozenset((QUEUE, *NAMES, *FLAGS))


def is_wanted(head: Head) -> bool:
    """Return whether a SUBSCRIBE or UNSUBSCRIBE is about a durable subscription; raise ProtocolError."""
    if any(head.headers.get(name) for name in (QUEUE, *NAMES)):
        return True
    return any([header_values.flag(head, name) for name in FLAGS])


def queue_of(head: Head, destination: Destination, client_id: str, home: str) -> QueueName | None:
    """Return the queue of the durable subscription that a SUBSCRIBE asks for, or None if it asks for none."""
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
