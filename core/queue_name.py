"""What a queue is called. The rules that names keep are in `names`."""

from __future__ import annotations

from typing import NamedTuple

PRIVATE_PROJECT = "~private"
"""Where the queues are that a client has for itself alone. It is no name of a project, so no request can say it."""


class QueueName(NamedTuple):
    """A project and a queue in it. Make one with `queue_name`, which checks the rules."""

    project: str
    queue: str

    def __str__(self) -> str:
        return f"{self.project}/{self.queue}"

    @property
    def is_private(self) -> bool:
        """Whether it is a client's own queue: not listed, reached by no request, and gone with the process."""
        return self.project == PRIVATE_PROJECT
