"""Hands over from a server to its standby, without a loss: at no moment there are two servers, or a confirm is missing.

The server first stops to confirm. When the standby has everything, it is given the lease, if there is one, and the
server notes, durably, that it is a copy from now on. Only then the standby is asked to take over. Whatever fails before
that, the server continues; one that has given its lease away ends. It need not have noted that, as its disk may have
failed: the lease says so, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from curbstone.core.errors import Conflict, Unavailable
from curbstone.standby.frames import InSync
from curbstone.standby.state_files import StateFiles
from curbstone.standby.stream import Stream

ACK_S_MAX = 10
"""How long the standby has to acknowledge everything."""
TAKEN_S_MAX = 5
"""How long the standby has to take over; after that somebody has to promote it."""
POLL_S = 0.02

logger = logging.getLogger("curbstone")


class Ending(Protocol):
    """How a server ends."""

    def freeze(self) -> None:
        """Confirm nothing from now on."""

    def thaw(self) -> None:
        """Confirm again."""

    def __call__(self, term: int) -> None:
        """A server of this term has replaced this one, so it has to end. Called on any thread."""


class Successor(Protocol):
    """The standby that is to take over; `followers.Follower` implements it."""

    name: str
    acknowledged: int
    """Up to where it has everything."""

    @property
    def is_closed(self) -> bool:
        """Whether its connection has ended."""

    def take_over(self) -> None:
        """Have it become the server, when it has everything that is there now."""


class Handover:
    """See the module's docstring. From the moment that it is made, on the host's thread, nothing is confirmed."""

    def __init__(
        self,
        stream: Stream,
        files: StateFiles,
        standby: Successor,
        ending: Ending,
        has_failed: Callable[[], bool],
        give: Callable[[], object] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`has_failed` is whether a sync of the server has failed: then what is read may not be on its disk.

        `give` gives the standby the lease of the server, if it has one. It blocks, and raises Unavailable if nothing
        has changed.
        """
        self.name = standby.name
        self.term = files.state.term + 1
        """The term that the standby is going to have."""
        ending.freeze()
        self._ending = ending
        self._state_files = files
        self._standby = standby
        self._has_failed = has_failed
        self._give = give
        self._now_s = now_s
        self._pause = pause
        self._mark = stream.end
        """Everything that was confirmed is before this position."""

    def give_up(self) -> None:
        """The server continues."""
        self._ending.thaw()

    def end(self) -> None:
        """The server ends."""
        self._ending(self.term)

    def run(self) -> None:
        """Hand over. Blocks. Raise Conflict or Unavailable if nothing has changed."""
        standby, until_s = self._standby, self._now_s() + ACK_S_MAX
        while standby.acknowledged < self._mark:
            if standby.is_closed or self._now_s() > until_s:
                raise Conflict(f"{self.name} has not acknowledged everything in {ACK_S_MAX} s; nothing was changed")
            self._pause(POLL_S)
        if self._give is not None:
            self._give()
        try:
            self._state_files.change(
                is_server=False,
                is_complete=True,
                in_sync=InSync.NO,
                believed="",
                wants_full_copy=self._state_files.state.wants_full_copy or self._has_failed(),
            )
        except OSError as error:
            if self._give is None:
                raise Unavailable(f"it can't be noted that this server has ended: {error.strerror}") from error
            logger.warning("the end of this server is recorded only in the lease: %s", error)
        standby.take_over()
        until_s = self._now_s() + TAKEN_S_MAX
        while not standby.is_closed and self._now_s() < until_s:
            self._pause(POLL_S)
