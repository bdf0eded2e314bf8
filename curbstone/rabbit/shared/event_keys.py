"""The names of events in RabbitMQ: `project.event`, a routing key of a topic exchange. Pure.

The masks of bindings have the same meaning there as here; only `>` at the end is written `#`.
"""

from __future__ import annotations

from curbstone.core.errors import BadRequest
from curbstone.core.masks import ANY_WORDS, THE_REST, Masks
from curbstone.core.names import QueueName, event_name
from curbstone.rabbit.shared.topology import NAME_BYTES_MAX


def routing_key(project: str, event: str) -> str:
    """Return the routing key of an event. Raise BadRequest if it is too long."""
    key = f"{project}.{event}"
    if len(key.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"bad event name: on a cluster it has at most {NAME_BYTES_MAX} bytes with its project")
    return key


def event_key(name: QueueName, binding: str) -> str:
    """Return the routing key that a binding of a queue stands for. The binding of a private queue names the project."""
    project, event = binding.split("/", 1) if name.is_private else (name.project, binding)
    if event == THE_REST or event.endswith("." + THE_REST):
        event = event[: -len(THE_REST)] + ANY_WORDS
    return routing_key(project, event)


def binding_of(name: QueueName, event: str, project: str) -> str:
    """Return the binding of a queue to an event. Raise BadRequest if the event belongs to another project."""
    if name.is_private:
        return f"{project}/{event_name(event)}"
    if project != name.project:
        raise BadRequest(f"queue {name} can be bound to events of its project, and not to those of {project}")
    return event_name(event)


def takes(name: QueueName, bindings: frozenset[str], event: str, project: str) -> bool:
    """Return whether a queue with these bindings gets the messages for an event of a project."""
    masks = Masks()
    for binding in bindings:
        own_project, _, mask = binding.partition("/") if name.is_private else (name.project, "", binding)
        if own_project == project:
            masks.add(mask)
    return bool(masks) and bool(masks.taking(event))
