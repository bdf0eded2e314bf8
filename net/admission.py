"""How many clients the process serves at once, over all its listeners.

Each connection takes a file descriptor, and so does what the engine writes to. So connections have a share of what the
system allows, and whoever comes beyond it is told and sent away: those who are there keep their service. The share is
asked for each time, as the limit may be changed from outside while the process runs. It knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MATTER = "connections"


class Troubles(Protocol):
    """Where it is told that the limit bites; `core.troubles` has one."""

    def note(self, matter: str, text: str) -> None:
        """It does."""

    def over(self, matter: str) -> None:
        """It does no more."""


class Admission:
    """See the module's docstring. Called from the event loop only."""

    def __init__(self, most: Callable[[], int], troubles: Troubles) -> None:
        """`most`: how many connections there may be now."""
        self._most = most
        self._troubles = troubles
        self._counts: list[Callable[[], int]] = []
        self._coming = 0
        self._is_full = False

    def add(self, count: Callable[[], int]) -> None:
        """Count the connections of one more listener."""
        self._counts.append(count)

    @property
    def _there(self) -> int:
        return self._coming + sum([count() for count in self._counts])

    def admits(self, call_soon: Callable[[Callable[[], None]], object]) -> bool:
        """Return whether one more may come; it is counted here until its listener does, in the loop's next turn."""
        most = self._most()
        if self._there >= most:
            self._is_full = True
            self._troubles.note(MATTER, f"{most} are open, and more are refused: files need the other descriptors")
            return False
        self._coming += 1
        call_soon(self._came)
        return True

    def left(self) -> None:
        """A connection ended."""
        if self._is_full and self._there < self._most():
            self._is_full = False
            self._troubles.over(MATTER)

    def _came(self) -> None:
        self._coming -= 1
