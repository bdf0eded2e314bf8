"""Hands over from a server to its standby, without a loss: at no moment there are two servers, or a confirm is missing.

The server first stops to confirm. When the standby has everything, the server notes, durably, that it is
a copy from now on. Only then the standby is asked to take over. Whatever fails before that note, the server continues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from curbstone.core.errors import Conflict, Unavailable
from curbstone.standby.frames import InSync
from curbstone.standby.place import Place
from curbstone.standby.stream import Stream

if TYPE_CHECKING:
    from curbstone.standby.followers import Follower

ACK_S_MAX = 10
"""How long the standby has to acknowledge everything."""
TAKEN_S_MAX = 5
"""How long the standby has to take over; after that somebody has to promote it."""
LOOK_S = 0.02


class Ending(Protocol):
    """How a server ends."""

    def freeze(self) -> None:
        """Confirm nothing from now on."""

    def thaw(self) -> None:
        """Confirm again."""

    def __call__(self, term: int) -> None:
        """A server of this term has replaced this one, so it has to end. Called on any thread."""


class Handover:
    """See the module's docstring. From the moment that it is made, on the host's thread, nothing is confirmed."""

    def __init__(self, stream: Stream, place: Place, standby: Follower, ending: Ending) -> None:
        self.name = standby.name
        self.term = place.state.term + 1
        """The term that the standby is going to have."""
        ending.freeze()
        self._ending = ending
        self._place = place
        self._standby = standby
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
        standby, until_s = self._standby, time.monotonic() + ACK_S_MAX
        while standby.acknowledged < self._mark:
            if standby.is_closed or time.monotonic() > until_s:
                raise Conflict(f"{self.name} has not acknowledged everything in {ACK_S_MAX} s; nothing was changed")
            time.sleep(LOOK_S)
        try:
            self._place.change(is_server=False, is_complete=True, in_sync=InSync.NO, believed="")
        except OSError as error:
            raise Unavailable(f"it can't be noted that this server has ended: {error.strerror}") from error
        standby.take_over()
        until_s = time.monotonic() + TAKEN_S_MAX
        while not standby.is_closed and time.monotonic() < until_s:
            time.sleep(LOOK_S)
