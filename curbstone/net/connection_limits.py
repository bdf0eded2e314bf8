"""Limits the number of connections, over all listeners of the process.

Each connection takes a file descriptor, and the engine needs descriptors for its files, so connections get a share of
the descriptors that the system allows. A client beyond that share is refused with the reason. The share is computed for
each connection, because the system's limit can be changed while the process runs.

No other machine may take the whole share: there is a limit for each address. Clients of this machine are not counted by
address, because behind a proxy many clients have the same one. When the server is full, a few more connections may
still check its health, so that a full server does not look dead. If there are users, clients that have not logged in
have a lower limit, and so has each user. This module does not handle sockets.
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
USER_FULL = "{} connections of this user are open, which is the limit"


class DiskAlarms(Protocol):
    """Alarms about refused connections; `core.engine.disk_alarms` implements it."""

    def note(self, matter: str, text: str) -> None:
        """Raise the alarm, with this description."""

    def over(self, matter: str) -> None:
        """Clear the alarm."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most connections of each kind; 0 for no limit."""

    address: int = 0
    """From one address of another machine."""
    unauthenticated: int = 0
    """Without a login, in all."""
    address_unauthenticated: int = 0
    """Without a login, from one address of another machine."""
    user: int = 0
    """Of one user."""


class Admission:
    """Counts connections and refuses those above a limit. Called from the event loop only."""

    def __init__(
        self,
        most: Callable[[], int] = lambda: sys.maxsize,
        alarms: DiskAlarms | None = None,
        bounds: Bounds | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`most` returns the current limit of connections; `budget` limits the memory that they hold."""
        self.bounds = bounds or Bounds()
        self.budget = budget or Budget()
        self.refused: Counter[str] = Counter()
        """The number of refused connections, by reason: full, address, strangers, user."""
        self.slots: set[Slot] = set()
        self._most = most
        self._alarms = alarms
        self._unauthenticated = 0
        self._reserve = 0
        self._counts: Counter[object] = Counter()
        """By (kind, who): the connections of each address, those of it without a login, and those of each user."""
        self._is_full = False

    def open_slot(self, may_be_reserve: bool = False) -> Slot | None:
        """Count one more connection and return its slot, or None if the limit is reached.

        `may_be_reserve`: when the server is full, the connection may become one of a few that can only check its
        health.
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
        """Count one more connection of `who`; return False if there are already `most`."""
        count = self._counts[kind, who]
        if most and count >= most:
            self.refused[kind] += 1
            return False
        self._counts[kind, who] = count + 1
        return True

    def leave(self, kind: str, who: object) -> None:
        self._counts[kind, who] -= 1
        if not self._counts[kind, who]:
            del self._counts[kind, who]

    def has_too_many_unauthenticated(self) -> bool:
        """Return whether there are more connections without a login than allowed, and count a refusal."""
        most = self.bounds.unauthenticated
        if most and self._unauthenticated > most:
            self.refused["strangers"] += 1
            return True
        return False

    def authenticated(self) -> None:
        """Note that a connection without a login has logged in or ended."""
        self._unauthenticated -= 1

    def left(self, slot: Slot) -> None:
        """Remove a connection that has ended."""
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
        """Whether this connection can only check the health, because the server was full when it was opened."""
        self.transport: object = None
        """Set by the acceptor."""
        self.account = admission.budget.account()
        """The memory that the connection holds, in the share of its user or, before a login, of its address."""
        self.is_follower = False
        """Whether it is the connection of a follower. A stopping server closes it last, because other clients may wait
        for its acknowledgements."""
        self.login: Any = None
        """State of the protocol about the login of the last request."""
        self._admission = admission
        self._counted: list[tuple[str, object]] = []
        self._is_unauthenticated = True
        self._user = ""

    def set_address(self, host: str) -> str:
        """Set the client's address, once; return why the connection is refused, or ""."""
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
        """Set the connection's user; return why the connection is refused, or "".

        May be called again with another user, who then replaces the previous one.
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
            return USER_FULL.format(most)
        self._user = user
        if most:  # there are users
            self.account.move_to(f"user {user}")
        return ""

    def leave(self) -> None:
        """Release the slot of a connection that has ended. A second call does nothing."""
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
    """Return the key that an address is counted by, or None if it is this machine's; see `Peer.source`."""
    return None if is_loopback(address) else source_of(address)


def is_of_this_machine(address: tuple[str, int | None] | None) -> bool:
    """Return whether a client is on this machine."""
    return address is None or counted_as(address[0]) is None
