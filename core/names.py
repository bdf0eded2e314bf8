"""The names of queues, events and groups, and the rules they keep."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from curbstone.core.errors import BadRequest

DEFAULT_PROJECT = "default"
PRIVATE_PROJECT = "~private"
"""The project of queues that belong to one client. It breaks the rules for projects, so no request can name it."""

TEMPORARY = "temp."
"""How the names of temporary queues begin. The rest can't be guessed."""
REPLIES = "/reply-queue/"
"""How the addresses begin at which temporary queues get answers."""

_PROJECT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_QUEUE = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EVENT = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]{1,200}")
"""The last ranges are the controls of text direction."""


class QueueName(NamedTuple):
    """A project, and a queue in it. `queue_name` makes one and checks the rules."""

    project: str
    queue: str

    def __str__(self) -> str:
        return f"{self.project}/{self.queue}"

    @property
    def is_private(self) -> bool:
        """Whether the queue belongs to one client: it is not listed, no request can name it, no restart keeps it."""
        return self.project == PRIVATE_PROJECT


@lru_cache(maxsize=1024)
def queue_name(queue: str, project: str = DEFAULT_PROJECT) -> QueueName:
    """Return the checked name; raise BadRequest with the rule that it breaks."""
    if not _PROJECT.fullmatch(project):
        raise BadRequest(f"bad project name {project[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ -")
    if not _QUEUE.fullmatch(queue):
        raise BadRequest(f"bad queue name {queue[:80]!r}: 1 to 200 of A-Z a-z 0-9 . _ : -")
    if queue in (".", ".."):
        raise BadRequest(f"bad queue name {queue!r}: '.' and '..' are not names")
    return QueueName(project, queue)


def private_name(queue: str) -> QueueName:
    """Return the name of a private queue; raise BadRequest with the rule that it breaks."""
    return QueueName(PRIVATE_PROJECT, queue_name(queue).queue)


def reply_queue(address: str) -> QueueName:
    """Return the name of the private queue at an address for answers, `/reply-queue/{id}`; raise BadRequest."""
    return private_name(TEMPORARY + address.removeprefix(REPLIES))


def reply_address(queue: QueueName) -> str:
    """Return the address at which others can send to a temporary queue, as it stands in a `reply-to`."""
    return REPLIES + queue.queue.removeprefix(TEMPORARY)


def stored_name(queue: str, project: str) -> QueueName:
    """Return a name that the engine has stored, which may be that of a private queue; raise BadRequest."""
    return private_name(queue) if project == PRIVATE_PROJECT else queue_name(queue, project)


def parse_queue_name(text: str, project: str = DEFAULT_PROJECT) -> QueueName:
    """Return the name in `queue` or `project/queue` form; raise BadRequest."""
    head, slash, tail = text.partition("/")
    return queue_name(tail, head) if slash else queue_name(head, project)


def group_name(text: str) -> str:
    """Return `text` if it is a good group name (1 to 64 of A-Z a-z 0-9 _ . -); raise BadRequest."""
    if not _GROUP.fullmatch(text):
        raise BadRequest(f"bad group name {text[:80]!r}: 1 to 64 of A-Z a-z 0-9 _ . -")
    return text


def event_name(text: str) -> str:
    """Return `text` if it is a good event name (1 to 200, no spaces or controls); raise BadRequest."""
    if not _EVENT.fullmatch(text):
        raise BadRequest(
            f"bad event name {text[:80]!r}: 1 to 200 characters, no spaces, control or direction characters"
        )
    return text
