"""Parses `destination` headers.

| destination                                    | kind  | queue             |
|------------------------------------------------|-------|-------------------|
| `/queue/{queue}`, `{queue}`, `./{queue}`       | QUEUE | {home}/{queue}    |
| `/queue/{project}/{queue}`                     | QUEUE | {project}/{queue} |
| `/q/{project}/{queue}` (keuss)                 | QUEUE | {project}/{queue} |
| `.`                                            | QUEUE | {home}/default    |
| any of these + `/count`                        | COUNT | the queue before it |
| `/topic/{event}`                               | TOPIC | a private one for each subscription |
| `/temp-queue/{name}`                           | QUEUE | a private one of the connection |
| `/reply-queue/{id}`                            | REPLY | the temporary queue that a `reply-to` named |

A SEND to `/session/token` is a login.

The home is the user's home project, or `default` if there are no users. If the server has a single queue (Curb), every
destination means that queue, or its count. The queues of the last three rows are private (see `core.names`): they can
be reached only through these destinations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from curbstone.core.errors import BadRequest
from curbstone.core.names import (
    PRIVATE_PROJECT,
    REPLIES,
    TEMPORARY,
    QueueName,
    event_name,
    private_name,
    queue_name,
    reply_queue,
)
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.unsupported import ANY, QUEUE, TOPIC, check_destination

COUNT_SUFFIX = "/count"
SESSION_TOKEN = "/session/token"
TEMP_PREFIX = "/temp-queue/"


class Kind(Enum):
    """The kind of a destination."""

    QUEUE = "queue"
    COUNT = "count"
    TOPIC = "topic"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class Destination:
    """A parsed destination."""

    kind: Kind
    queue: QueueName
    """The queue; for a TOPIC, the first part of the names of its subscriptions' private queues."""
    event: str = ""
    keuss: bool = False
    """Whether the client used the form of keuss, /q/{project}/{queue}."""
    private: bool = False
    """Whether the queue is deleted when the connection ends."""
    project: str = ""
    """For a TOPIC, the project of its event: the home when the destination was parsed."""

    @property
    def shown_kind(self) -> str:
        """The kind as the table of unsupported headers distinguishes it."""
        if self.kind is Kind.TOPIC:
            return TOPIC
        return QUEUE if self.kind is Kind.QUEUE and not self.private else ANY

    def is_same(self, other: Destination) -> bool:
        """Return whether both name the same queue or topic, regardless of a topic subscription's own queue."""
        return self.kind is other.kind and (self.event == other.event if self.event else self.queue == other.queue)


def parse_destination(text: str, connection: str, single_queue: QueueName | None, home: str) -> Destination:
    """Parse a destination on the connection of that name; raise ProtocolError, which names the broken rule.

    `home` is the project of queues that are named without a project.
    """
    if not text.strip():
        raise ProtocolError("the destination is empty", f"destination:{text}")
    try:
        return _parse(text, connection, single_queue, home)
    except BadRequest as error:
        check_destination(text)
        raise ProtocolError(str(error), f"destination:{text}") from None
    except ProtocolError:
        check_destination(text)
        raise


def _parse(text: str, connection: str, single_queue: QueueName | None, home: str) -> Destination:
    counted = text.endswith(COUNT_SUFFIX) and len(text) > len(COUNT_SUFFIX)
    kind = Kind.COUNT if counted else Kind.QUEUE
    if single_queue is not None:
        return Destination(kind, single_queue)
    if "::" in text:
        check_destination(text)
    if text.startswith("/topic/"):
        check_destination(text)
        name = QueueName(PRIVATE_PROJECT, f"topic.{connection}")
        return Destination(Kind.TOPIC, name, event_name(text[7:]), private=True, project=home)
    if text.startswith(REPLIES):
        return Destination(Kind.REPLY, reply_queue(text), private=True)
    # "/queue/count" is a queue named "count", not the count of an unnamed queue.
    path = text[: -len(COUNT_SUFFIX)] if counted else text
    if path in ("/queue", "/q", TEMP_PREFIX[:-1]):
        path, kind = text, Kind.QUEUE
    if path.startswith(TEMP_PREFIX):
        name = private_name(f"{TEMPORARY}{connection}.{queue_name(path[len(TEMP_PREFIX) :]).queue}")
        return Destination(kind, name, private=True)
    return Destination(kind, _queue(text, path, home), keuss=path.startswith("/q/"))


def _queue(text: str, path: str, home: str) -> QueueName:
    if path == ".":
        return queue_name("default", home)
    if path.startswith("./"):
        return queue_name(path[2:], home)
    parts = path.split("/")
    if len(parts) == 1:
        return queue_name(path, home)
    if parts[0] == "" and parts[1] == "queue" and len(parts) in (3, 4):
        return queue_name(parts[-1], parts[2]) if len(parts) == 4 else queue_name(parts[2], home)
    if parts[0] == "" and parts[1] == "q":
        if len(parts) == 4:
            return queue_name(parts[3], parts[2])
        raise ProtocolError("the destination must be /q/{project}/{queue}", f"destination:{text}")
    raise ProtocolError(
        "unknown destination; use /queue/{queue}, /queue/{project}/{queue}, /q/{project}/{queue}, "
        "{queue}, ./{queue}, ., /topic/{event}, /temp-queue/{name} or /reply-queue/{id}",
        f"destination:{text}",
    )
