"""A planned switchover from a server to its standby, without loss and without two active servers.

The server first stops confirming. When the standby has everything, it is given the lease, if there is one, and the
server records durably that it is a copy from now on. Only then is the standby asked to take over. If anything fails
before that, the server continues; one that has handed over its lease shuts down. If its disk has failed, the handover
is recorded only in the lease.
"""

from __future__ import annotations

import asyncio
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
"""How long the standby has to take over; after that it has to be promoted by an operator."""
POLL_S = 0.02
END_S = 0.2
"""How long the server waits before it shuts down, so that the reply to a switchover is sent."""

logger = logging.getLogger("curbstone")


class Ending(Protocol):
    """Shuts down a server."""

    def freeze(self) -> None:
        """Stop confirming."""

    def thaw(self) -> None:
        """Resume confirming."""

    def __call__(self, term: int) -> None:
        """Shut down, because a server of this term has replaced this one. Called on any thread."""


class Successor(Protocol):
    """The standby that is going to take over; `followers.Follower` implements it."""

    name: str
    acknowledged: int
    """The last position that it has acknowledged."""

    @property
    def is_closed(self) -> bool:
        """Whether its connection is closed."""

    def take_over(self) -> None:
        """Have it become the server, once it has applied everything up to here."""


class Handover:
    """See the module's docstring. Once it is created, on the host's thread, nothing is confirmed."""

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
        """`has_failed`: whether a sync of the server has failed, so that what is read may not be on its disk.

        `give` hands the lease of the server, if it has one, to the standby. It blocks, and raises Unavailable if
        nothing has changed.
        """
        self.name = standby.name
        self.term = files.state.term + 1
        """The term of the standby after the switchover."""
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

    async def switch_over(self) -> None:
        """Hand over, then shut this server down. If it fails, the server continues; raise what `run` raises.

        It is not cancelled with its caller, because `run` can't be stopped: a server that has handed over must not
        continue.
        """
        await asyncio.shield(asyncio.ensure_future(self._switch_over()))

    async def _switch_over(self) -> None:
        try:
            await asyncio.to_thread(self.run)
        except Exception:
            self._ending.thaw()
            raise
        asyncio.get_running_loop().call_later(END_S, self._ending, self.term)

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
                raise Unavailable(f"can't record that this server has handed over: {error.strerror}") from error
            logger.warning("the handover is recorded only in the lease: %s", error)
        standby.take_over()
        until_s = self._now_s() + TAKEN_S_MAX
        while not standby.is_closed and self._now_s() < until_s:
            self._pause(POLL_S)
