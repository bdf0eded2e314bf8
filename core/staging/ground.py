"""What all staged transactions share: where they are, and how much there may be of them."""

from __future__ import annotations

import logging

from curbstone.core.disk import Disk
from curbstone.core.errors import QueueFull
from curbstone.core.host import Host

KEPT_SHARE = 16
"""One part in so many of what may be staged is kept for projects that stage no more than that."""

logger = logging.getLogger("curbstone.core")


class Ground:
    """See the module's docstring."""

    def __init__(self, host: Host, disk: Disk, bytes_max: int) -> None:
        self.host = host
        self.disk = disk
        self.is_stopping = False
        self.bytes = 0
        """What all parts count for, those on their way in included."""
        self.bytes_max = bytes_max
        self._by_project: dict[str, int] = {}

    def take(self, project: str, size: int) -> None:
        """Count bytes that come in; raise QueueFull where they are too many, or would leave others nothing."""
        kept = self.bytes_max // KEPT_SHARE
        if self.bytes + size > self.bytes_max:
            raise QueueFull(f"more than {self.bytes_max} bytes are staged; see --max-staged")
        if self.bytes + size > self.bytes_max - kept and self._by_project.get(project, 0) + size > kept:
            raise QueueFull(f"the last {kept} bytes are for projects that stage no more than these; see --max-staged")
        self.count(project, size)

    def count(self, project: str, size: int) -> None:
        """Count bytes that are there."""
        self.bytes += size
        self._by_project[project] = self._by_project.get(project, 0) + size

    def give_back(self, project: str, size: int) -> None:
        """Bytes are gone."""
        self.bytes -= size
        left = self._by_project.pop(project, 0) - size
        if left:
            self._by_project[project] = left

    @staticmethod
    def ignore(_result: object, error: BaseException | None) -> None:
        """A file that is not needed was removed, or is at the next start."""
        if error is not None:
            logger.warning("a staged file that is not needed can't be removed: %s", error)
