"""The gate before the server: whoever comes shows credentials and gets an `Access`, or is refused.

Adapters take credentials off their wire and know `Gate`. `OpenGate` is that of a server without users, where everyone
is `local` and may everything; `access.login` has the one with users. Both know who is connected.
"""

from __future__ import annotations

from typing import Protocol

from curbstone.access.callers import Caller, Credentials
from curbstone.access.door import Access
from curbstone.access.identity import local_identity
from curbstone.access.presence import Admitted, Connections
from curbstone.access.watch import Watch
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.port import Broker


class Gate(Protocol):
    """See the module's docstring. Called on the host's thread."""

    connections: Connections
    """Who is connected."""
    watch: Watch
    """What each `Access` of this gate has told."""
    generation: int
    """Another after each reload: what was found good before may count no more."""
    logins: dict[tuple[str, str], int]
    """How many there were, by protocol and outcome."""
    held_back: dict[str, int]
    """How often a user's rate held back a connection or a request, by protocol."""

    @property
    def wants_login(self) -> bool:
        """Whether there are users; else everyone is let in as `local`."""

    @property
    def everyone(self) -> Access:
        """What the server itself does in the name of nobody, and what everyone may where there are no users."""

    @property
    def nobody(self) -> Access:
        """What one may who is not logged in: nothing but what needs no login."""

    def enter(self, credentials: Credentials, caller: Caller) -> Access | None:
        """Return what a client gets; None where its password has to be hashed first: then call `admit`.

        Raise NotLoggedIn or TooMany.
        """

    def admit(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        """Call back with what a client gets, or with why it gets nothing; maybe before this returns."""

    def use_ticket(self, text: str, way: str, queue: QueueName | None, caller: Caller) -> Access:
        """Return what the owner of a ticket gets; raise NotLoggedIn where it is none for this."""


class OpenGate:
    """The gate of a server without users."""

    wants_login = False
    generation = 0

    def __init__(self, broker: Broker, host: Host) -> None:
        self.connections = Connections(host, self.admit)
        self.watch = Watch(host)
        self.logins: dict[tuple[str, str], int] = {}
        self.held_back: dict[str, int] = {}
        self.everyone: Access = Access(self.watch, broker, local_identity(), lambda _project: None)
        self.nobody = self.everyone

    def enter(self, _credentials: Credentials, _caller: Caller) -> Access:
        """See `Gate.enter`: what clients present is not looked at."""
        return self.everyone

    def admit(self, _credentials: Credentials, _caller: Caller, on_done: Admitted) -> None:
        """See `Gate.admit`."""
        on_done(self.everyone)

    def use_ticket(self, _text: str, _way: str, _queue: QueueName | None, _caller: Caller) -> Access:
        """See `Gate.use_ticket`."""
        return self.everyone
