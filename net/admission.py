"""How many clients the process serves at once, over all its listeners.

Each connection takes a file descriptor, and so does what the engine writes to. So connections have a share of what the
system allows, and whoever comes beyond it is told and sent away: those who are there keep their service. The share is
asked for each time, as the limit may be changed from outside while the process runs.

No single other machine may take the whole share: of one address there are so many at most. Clients of this machine are
not counted like that, for behind a proxy they are many. A few more may come if they can ask for health alone, for a
server that is full must not look dead. If clients log in, those who have not are fewer still, and
so are those of one user. It knows no sockets.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

from curbstone.net.limits import SPARES

MATTER = "connections"

FULL = "the server has as many connections as it may; try again later"
CROWDED = "{} connections from this address are open, and there may be no more"
STRANGERS = "too many connections without a login are open; try again later"
USER = "{} connections of this user are open, and there may be no more"


class Troubles(Protocol):
    """Where it is told that the limit bites; `core.troubles` has one."""

    def note(self, matter: str, text: str) -> None:
        """It does."""

    def over(self, matter: str) -> None:
        """It does no more."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most connections of each kind; 0 for any number."""

    address: int = 0
    """From one address of another machine."""
    strangers: int = 0
    """In all, of clients that have not logged in."""
    address_strangers: int = 0
    """Of those, from one address of another machine."""
    user: int = 0
    """Of one user."""


class Admission:
    """See the module's docstring. Called from the event loop only."""

    def __init__(
        self,
        most: Callable[[], int] = lambda: sys.maxsize,
        troubles: Troubles | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`most`: how many connections there may be now."""
        self.bounds = bounds or Bounds()
        self.refused: Counter[str] = Counter()
        """How many were sent away, by the reason: full, address, strangers, user."""
        self.visits: set[Visit] = set()
        """Who is here."""
        self._most = most
        self._troubles = troubles
        self._strangers = 0
        self._spares = 0
        self._visitors: Counter[object] = Counter()
        """How many there are from each address, of strangers from it, and of each user."""
        self._is_full = False

    def come(self, may_be_spare: bool = False) -> Visit | None:
        """Count one more connection; None if there may be no more.

        `may_be_spare`: beyond those it may be one of a few that get nothing but health.
        """
        most = self._most()
        is_full = len(self.visits) - self._spares >= most
        is_spare = is_full and may_be_spare and self._spares < SPARES
        if is_full:
            self.refused["full"] += 1
            self._is_full = True
            if self._troubles is not None:
                self._troubles.note(MATTER, f"{most} are open, and more are refused: files need the other descriptors")
            if not is_spare:
                return None
            self._spares += 1
        visit = Visit(self, is_spare)
        self.visits.add(visit)
        self._strangers += 1
        return visit

    # --- what a visit says

    def enter(self, kind: str, who: object, most: int) -> bool:
        """Count one more of `who`; return whether it may come."""
        count = self._visitors[kind, who]
        if most and count >= most:
            self.refused[kind] += 1
            return False
        self._visitors[kind, who] = count + 1
        return True

    def leave(self, kind: str, who: object) -> None:
        """Undo `enter`."""
        self._visitors[kind, who] -= 1
        if not self._visitors[kind, who]:
            del self._visitors[kind, who]

    def is_crowded(self) -> bool:
        """Return whether no more strangers may come."""
        most = self.bounds.strangers
        if most and self._strangers > most:
            self.refused["strangers"] += 1
            return True
        return False

    def known(self) -> None:
        """A stranger logged in, or left."""
        self._strangers -= 1

    def left(self, visit: Visit) -> None:
        """A connection ended."""
        self.visits.discard(visit)
        self._spares -= visit.is_spare
        if self._is_full and len(self.visits) - self._spares < self._most():
            self._is_full = False
            if self._troubles is not None:
                self._troubles.over(MATTER)


class Visit:
    """One connection, from its first byte to its last."""

    __slots__ = ("_admission", "_counted", "_is_stranger", "_user", "is_spare", "line", "login")

    def __init__(self, admission: Admission, is_spare: bool = False) -> None:
        self.is_spare = is_spare
        """Whether it gets nothing but health."""
        self.line: object = None
        """What the entrance knows it by."""
        self.login: Any = None
        """What its protocol knows of the login of its last request."""
        self._admission = admission
        self._counted: list[tuple[str, object]] = []
        self._is_stranger = True
        self._user = ""

    def comes_from(self, host: str) -> str:
        """Say from which address; return why it may not come, "" if it may. Called once."""
        admission, bounds = self._admission, self._admission.bounds
        if admission.is_crowded():
            return STRANGERS
        visitor = visitor_of(host)
        if visitor is None:
            return ""
        if not self._enter("address", visitor, bounds.address):
            return CROWDED.format(bounds.address)
        if not self._enter("strangers", visitor, bounds.address_strangers):
            return STRANGERS
        return ""

    def logged_in(self, user: str) -> str:
        """Say whose it is; return why it may not go on, "" if it may. Again with another user, it is theirs."""
        if user == self._user:
            return ""
        if self._is_stranger:
            self._is_stranger = False
            self._admission.known()
            self._leave("strangers")
        self._leave("user")
        self._user = ""
        most = self._admission.bounds.user
        if not self._enter("user", user, most):
            return USER.format(most)
        self._user = user
        return ""

    def leave(self) -> None:
        """The connection ended; may be called twice."""
        if self not in self._admission.visits:
            return
        for kind, who in self._counted:
            self._admission.leave(kind, who)
        if self._is_stranger:
            self._admission.known()
        self._admission.left(self)

    def _enter(self, kind: str, who: object, most: int) -> bool:
        if not self._admission.enter(kind, who, most):
            return False
        self._counted.append((kind, who))
        return True

    def _leave(self, kind: str) -> None:
        for counted in self._counted:
            if counted[0] == kind:
                self._counted.remove(counted)
                self._admission.leave(*counted)
                return


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


def is_of_this_machine(address: tuple[str, int | None] | None) -> bool:
    """Return whether an address is one that only this machine can reach."""
    return address is None or visitor_of(address[0]) is None
