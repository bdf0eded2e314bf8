"""How many clients the process serves at once, over all its listeners.

Each connection takes a file descriptor, and the engine needs descriptors for its files. So connections get a share of
the descriptors that the system allows. A client beyond that share is refused with the reason, and the clients that
are already connected keep their service. The share is computed for each connection, because the limit can be changed
from outside while the process runs.

No other machine may take the whole share: there is a bound for each address. Clients of this machine are not counted by
address, because behind a proxy many clients have the same one. When the server is full, a few more connections may
still ask for its health, so that a full server does not look dead. If clients log in, those that have not logged in
have a lower bound, and so has each user. This module does not handle sockets.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from curbstone.net.budget import Budget
from curbstone.net.limits import RESERVE
from curbstone.net.peer import is_loopback, source_of

MATTER = "connections"

FULL = "the server has reached its limit of connections; try again later"
ADDRESS_FULL = "{} connections from this address are open, which is the limit"
TOO_MANY_UNAUTHENTICATED = "too many connections without a login are open; try again later"
USER = "{} connections of this user are open, which is the limit"


class DiskAlarms(Protocol):
    """Is notified when connections are refused; `core.engine.disk_alarms` implements it."""

    def note(self, matter: str, text: str) -> None:
        """The limit is reached: `text` says how."""

    def over(self, matter: str) -> None:
        """The limit is no longer reached."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most connections of each kind; 0 means no bound."""

    address: int = 0
    """From one address of another machine."""
    unauthenticated: int = 0
    """From clients that have not logged in, together."""
    address_unauthenticated: int = 0
    """From clients of one address of another machine that have not logged in."""
    user: int = 0
    """From one user."""


class Admission:
    """Counts connections and refuses those above a limit. Called from the event loop only."""

    def __init__(
        self,
        most: Callable[[], int] = lambda: sys.maxsize,
        alarms: DiskAlarms | None = None,
        bounds: Bounds | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`most` returns how many connections there may be now; `budget` bounds what they hold in memory."""
        self.bounds = bounds or Bounds()
        self.budget = budget or Budget()
        self.refused: Counter[str] = Counter()
        """How many connections were refused, by the reason: full, address, strangers, user."""
        self.slots: set[Slot] = set()
        """The open connections."""
        self._most = most
        self._alarms = alarms
        self._unauthenticated = 0
        self._reserve = 0
        self._counts: Counter[object] = Counter()
        """Counts by (kind, who): connections of each address, those of it that have not logged in, and of each user."""
        self._is_full = False

    def open_slot(self, may_be_reserve: bool = False) -> Slot | None:
        """Count one more connection and return its slot, or None if there may be no more.

        `may_be_reserve`: when the server is full, the connection may become one of a few that can ask for health only.
        """
        most = self._most()
        is_full = len(self.slots) - self._reserve >= most
        is_reserve = is_full and may_be_reserve and self._reserve < RESERVE
        if is_full:
            self.refused["full"] += 1
            self._is_full = True
            if self._alarms is not None:
                self._alarms.note(MATTER, f"{most} are open, and more are refused: files need the other descriptors")
            if not is_reserve:
                return None
            self._reserve += 1
        slot = Slot(self, is_reserve)
        self.slots.add(slot)
        self._unauthenticated += 1
        return slot

    # --- what slots call

    def enter(self, kind: str, who: object, most: int) -> bool:
        """Count one more connection of `who` if there are fewer than `most`; return whether it was counted."""
        count = self._counts[kind, who]
        if most and count >= most:
            self.refused[kind] += 1
            return False
        self._counts[kind, who] = count + 1
        return True

    def leave(self, kind: str, who: object) -> None:
        """Undo `enter`."""
        self._counts[kind, who] -= 1
        if not self._counts[kind, who]:
            del self._counts[kind, who]

    def has_too_many_unauthenticated(self) -> bool:
        """Return whether there are more connections without a login than allowed."""
        most = self.bounds.unauthenticated
        if most and self._unauthenticated > most:
            self.refused["strangers"] += 1
            return True
        return False

    def authenticated(self) -> None:
        """A connection without a login has logged in or ended."""
        self._unauthenticated -= 1

    def left(self, slot: Slot) -> None:
        """A connection ended."""
        self.slots.discard(slot)
        self._reserve -= slot.is_reserve
        if self._is_full and len(self.slots) - self._reserve < self._most():
            self._is_full = False
            if self._alarms is not None:
                self._alarms.over(MATTER)


class Slot:
    """One connection, from its first byte to its last."""

    __slots__ = (
        "_admission",
        "_counted",
        "_is_unauthenticated",
        "_user",
        "account",
        "is_follower",
        "is_reserve",
        "login",
        "transport",
    )

    def __init__(self, admission: Admission, is_reserve: bool = False) -> None:
        self.is_reserve = is_reserve
        """Whether this connection can ask for health only, because the server was full when it was opened."""
        self.transport: object = None
        """The transport of the connection, set by the acceptor."""
        self.account = admission.budget.account()
        """What the connection holds in memory: on the account of its user, or until the login of its address."""
        self.is_follower = False
        """Whether it is of one who follows the server. When the server stops it is closed last, because others may wait
        for what it acknowledges."""
        self.login: Any = None
        """What the protocol keeps of the login of the last request."""
        self._admission = admission
        self._counted: list[tuple[str, object]] = []
        self._is_unauthenticated = True
        self._user = ""

    def set_address(self, host: str) -> str:
        """Note the client's address, once; return why the connection is refused, or "" if it is not."""
        admission, bounds = self._admission, self._admission.bounds
        if admission.has_too_many_unauthenticated():
            return TOO_MANY_UNAUTHENTICATED
        counted = counted_as(host)
        self.account.move_to(f"address {source_of(host)}" if counted is not None else "this machine")
        if counted is None:
            return ""
        if not self._enter("address", counted, bounds.address):
            return ADDRESS_FULL.format(bounds.address)
        if not self._enter("strangers", counted, bounds.address_unauthenticated):
            return TOO_MANY_UNAUTHENTICATED
        return ""

    def logged_in(self, user: str) -> str:
        """Note the connection's user; return why the connection is refused, or "" if it is not.

        May be called again with another user, who is then counted instead of the one before.
        """
        if user == self._user:
            return ""
        if self._is_unauthenticated:
            self._is_unauthenticated = False
            self._admission.authenticated()
            self._leave("strangers")
        self._leave("user")
        self._user = ""
        most = self._admission.bounds.user
        if not self._enter("user", user, most):
            return USER.format(most)
        self._user = user
        if most:  # there are users
            self.account.move_to(f"user {user}")
        return ""

    def leave(self) -> None:
        """Stop counting the connection, which has ended. A second call does nothing."""
        if self not in self._admission.slots:
            return
        for kind, who in self._counted:
            self._admission.leave(kind, who)
        if self._is_unauthenticated:
            self._admission.authenticated()
        self._admission.left(self)
        self.account.close()

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


def counted_as(address: str) -> str | None:
    """Return the key that an address is counted by, or None if it is this machine's.

    For IPv6 the key is the address's first 64 bits, because a single client has at least 2^64 addresses.
    """
    return None if is_loopback(address) else source_of(address)


def is_of_this_machine(address: tuple[str, int | None] | None) -> bool:
    """Return whether an address is one that only this machine can reach."""
    return address is None or counted_as(address[0]) is None
