"""The name of a queue. The rules for names are in `names`."""

from __future__ import annotations

from typing import NamedTuple

PRIVATE_PROJECT = "~private"
"""The project of queues that belong to one client. It breaks the rules for projects, so no request can name it."""


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
