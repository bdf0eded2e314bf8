"""The names of the objects in RabbitMQ, their arguments, and the routing keys of events. Pure.

An event is `project.event`, a routing key of a topic exchange. The masks of bindings have the same meaning there, but a
`>` at the end is written `#`.
"""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.errors import BadRequest
from curbstone.core.masks import ANY_WORDS, THE_REST, Masks
from curbstone.core.names import QueueName, event_name
from curbstone.core.options import QueueOptions
from curbstone.core.values import UNNAMED

NAME_BYTES_MAX = 255
DELIVERY_LIMIT = 1_000_000
"""A limit that is never reached. Without a limit, requeued messages would go to the tail of the queue."""
CONSUMER_TIMEOUT_MS = 8 * 86_400_000
"""More than the longest lease. RabbitMQ respects this argument of a queue from 3.12 on."""
LADDER_STEPS = 24
LADDER_STEP_MS = 64
LOST_MAX = 1000
TRANSACTIONS_BYTES_MAX = 256 * 1024 * 1024
REGISTRY_BYTES_MAX = 64 * 1024 * 1024
REGISTRY_SEGMENT_BYTES = 4 * 1024 * 1024


class Names(NamedTuple):
    """The names of all objects under one prefix."""

    prefix: str

    def queue(self, name: QueueName, group: str = UNNAMED) -> str:
        """Return the name of a queue, or that of one of its groups. Raise BadRequest if it is too long."""
        text = f"{self.prefix}{name.project}/{name.queue}" + (f"#{group}" if group else "")
        if len(text) > NAME_BYTES_MAX:
            raise BadRequest(f"on a cluster project, queue and group have at most {NAME_BYTES_MAX} bytes together")
        return text

    def of_queue(self, text: str) -> str:
        """Return the project/queue in the name of a queue, without its group."""
        return text.removeprefix(self.prefix).partition("#")[0]

    @property
    def registry(self) -> str:
        """The stream with all changes of queues."""
        return f"{self.prefix}registry"

    @property
    def events(self) -> str:
        """The exchange of events."""
        return f"{self.prefix}events"

    @property
    def dead(self) -> str:
        """The exchange of messages that expire in the broker."""
        return f"{self.prefix}dead"

    @property
    def lost(self) -> str:
        """The exchange, and the queue, of messages that no queue can store."""
        return f"{self.prefix}lost"

    @property
    def due(self) -> str:
        """The exchange at the end of the ladder."""
        return f"{self.prefix}end"

    def step(self, step: int) -> str:
        """The exchange, and the queue, of one step of the ladder. `due` follows the last step."""
        return f"{self.prefix}d{step}" if step >= 0 else self.due

    def gateway(self, number: int) -> str:
        """The queue of gateway `number` for the calls of others."""
        return f"{self.prefix}gw.{number}"

    @property
    def transactions(self) -> str:
        """The queue of committed transactions that are not carried out yet."""
        return f"{self.prefix}tx"

    @property
    def gateways(self) -> str:
        """The exchange that reaches all gateways."""
        return f"{self.prefix}gws"


def queue_arguments(names: Names, text: str, options: QueueOptions) -> dict[str, object]:
    """Return the arguments of a queue, or of the queue of one of its groups.

    If a queue drops its oldest messages, the broker must not dead-letter for it, because it would dead-letter the
    dropped messages, too.
    """
    common: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-max-length-bytes": options.cap,
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-consumer-timeout": CONSUMER_TIMEOUT_MS,
    }
    if options.drops_oldest:
        return {**common, "x-overflow": "drop-head"}
    return {
        **common,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": names.dead,
        "x-dead-letter-routing-key": text,
        "x-dead-letter-strategy": "at-least-once",
    }


def private_arguments(names: Names, options: QueueOptions, gateway: int) -> dict[str, object]:
    """Return the arguments of a private queue. Its gateway gets a message that does not fit, and ends the queue."""
    return {
        "x-max-length-bytes": options.cap,
        "x-overflow": "drop-head",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": names.gateway(gateway),
    }


def step_arguments(names: Names, step: int) -> dict[str, object]:
    """Return the arguments of the queue of a step of the ladder."""
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": LADDER_STEP_MS << step,
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": names.step(step - 1),
        "x-dead-letter-strategy": "at-least-once",
    }


def registry_arguments() -> dict[str, object]:
    """Return the arguments of the registry's stream."""
    return {
        "x-queue-type": "stream",
        "x-max-length-bytes": REGISTRY_BYTES_MAX,
        "x-stream-max-segment-size-bytes": REGISTRY_SEGMENT_BYTES,
    }


def lost_arguments() -> dict[str, object]:
    """Return the arguments of the queue of lost messages."""
    return {
        "x-queue-type": "quorum",
        "x-max-length": LOST_MAX,
        "x-overflow": "drop-head",
        "x-delivery-limit": 1_000_000,
    }


def transactions_arguments() -> dict[str, object]:
    """Return the arguments of the queue of committed transactions. One gateway at a time consumes from it, in order."""
    return {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-max-length-bytes": TRANSACTIONS_BYTES_MAX,
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-consumer-timeout": CONSUMER_TIMEOUT_MS,
    }


def routing_key(project: str, event: str) -> str:
    """Return the routing key of an event. Raise BadRequest if it is too long."""
    key = f"{project}.{event}"
    if len(key.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"bad event name: on a cluster it has at most {NAME_BYTES_MAX} bytes with its project")
    return key


def event_key(name: QueueName, binding: str) -> str:
    """Return the routing key of a queue's binding. The binding of a private queue names the project."""
    project, event = binding.split("/", 1) if name.is_private else (name.project, binding)
    if event == THE_REST or event.endswith("." + THE_REST):
        event = event[: -len(THE_REST)] + ANY_WORDS
    return routing_key(project, event)


def binding_of(name: QueueName, event: str, project: str) -> str:
    """Return the binding of a queue to an event. Raise BadRequest if the event belongs to another project."""
    if name.is_private:
        return f"{project}/{event_name(event)}"
    if project != name.project:
        raise BadRequest(f"queue {name} can be bound only to events of its own project, not of {project}")
    return event_name(event)


def takes(name: QueueName, bindings: frozenset[str], event: str, project: str) -> bool:
    """Return whether a queue with these bindings gets the messages for an event of a project."""
    masks = Masks()
    for binding in bindings:
        own_project, _, mask = binding.partition("/") if name.is_private else (name.project, "", binding)
        if own_project == project:
            masks.add(mask)
    return bool(masks) and bool(masks.taking(event))
