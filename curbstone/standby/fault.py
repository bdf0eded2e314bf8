"""Hands over to the standby when the disk of the server has failed for `--failover-on-fault`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from curbstone.core.errors import CurbstoneError
from curbstone.standby.handover import Handover

logger = logging.getLogger("curbstone")


class Source(Protocol):
    """`followers.Followers` implements it."""

    def hand_over(self) -> Handover:
        """Begin to hand over. Raise Conflict if no standby can take over."""


class FaultWatch:
    """See the module's docstring. `tick` is called regularly, on the loop's thread."""

    def __init__(
        self, source: Source, after_ms: int, is_disk_failing: Callable[[], bool], now_ms: Callable[[], int]
    ) -> None:
        self._source = source
        self._after_ms = after_ms
        self._is_disk_failing = is_disk_failing
        self._now_ms = now_ms
        self._since_ms: int | None = None
        """Since when the disk has failed, or the time of the last attempt to hand over."""
        self._handing_over: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Check the disk, and begin to hand over if it has failed for long enough."""
        now_ms = self._now_ms()
        if not self._is_disk_failing():
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= self._after_ms and self._handing_over is None:
            self._handing_over = asyncio.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        seconds = self._after_ms / 1000
        try:
            handover = self._source.hand_over()
            await handover.switch_over()
        except CurbstoneError as error:
            logger.error("the disk has failed, but no standby takes over: %s; retrying in %g s", error, seconds)
            self._since_ms = self._now_ms()
            self._handing_over = None
        else:
            logger.error("the disk has failed for %g s: handed over to %s", seconds, handover.name)
