"""How many clients the process serves at once, over all its listeners.

Each connection takes a file descriptor, and so does what the engine writes to. So connections have a share of what the
system allows, and whoever comes beyond it is told and sent away: those who are there keep their service. The share is
asked for each time, as the limit may be changed from outside while the process runs.

No single other machine may take the whole share: of one address there are so many at most. Clients of this machine are
not counted like that, for behind a proxy they are many. It knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
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

    def __init__(self, most: Callable[[], int], troubles: Troubles, address_most: int = 0) -> None:
        """`most`: how many connections there may be now; `address_most` of them from one address, 0 for any number."""
        self.address_most = address_most
        self._visitors: dict[object, int] = {}
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

    def enter(self, address: str) -> bool:
        """Return whether one more may come from this address, and count it until `leave`."""
        visitor = visitor_of(address)
        if visitor is None or not self.address_most:
            return True
        count = self._visitors.get(visitor, 0)
        if count >= self.address_most:
            return False
        self._visitors[visitor] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Undo `enter`."""
        visitor = visitor_of(address)
        count = self._visitors.pop(visitor, 0)
        if count > 1:
            self._visitors[visitor] = count - 1

    def left(self) -> None:
        """A connection ended."""
        if self._is_full and self._there < self._most():
            self._is_full = False
            self._troubles.over(MATTER)

    def _came(self) -> None:
        self._coming -= 1


@lru_cache(maxsize=1024)
def visitor_of(address: str) -> object:
    """Return whom an address belongs to, None for this machine: of IPv6 one has 2^64 of them at least."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return None
    return int(ip) >> 64 if isinstance(ip, IPv6Address) else ip
