"""The gate before the server: whoever comes shows credentials and gets an `Access`, or is refused.

Adapters take credentials off their wire and know `Gate`. `OpenGate` is that of a server without users, where everyone
is `local` and may everything; `access.login` has the one with users. Both know who is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from curbstone.access.door import Access
from curbstone.access.identity import Identity, local_identity
from curbstone.access.presence import Connections
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.port import Broker


class Certified(Protocol):
    """A verified client certificate."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its alternative names, with their kinds."""

    @property
    def subject(self) -> str:
        """Its whole subject."""


class Asker(Protocol):
    """One end of a connection."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """Its port."""

    @property
    def certificate(self) -> Certified | None:
        """The certificate that it has shown, if one was verified."""


class Caller(NamedTuple):
    """Where a client comes from, and how."""

    address: str
    port: int = 0
    protocol: str = ""
    certificate: tuple[str, ...] = ()
    """The names in its certificate, if the TLS handshake verified one."""

    @classmethod
    def of(cls, asker: Asker, protocol: str) -> Caller:
        """Return the caller at the other end of a connection."""
        certificate = asker.certificate
        names = (*certificate.names, certificate.subject) if certificate is not None else ()
        return cls(asker.host, asker.port, protocol, names)

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Credentials(NamedTuple):
    """What a client presents. A token stands in `secret`, with its user or with none."""

    user: str = ""
    secret: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether it presents nothing."""
        return not self.user and not self.secret


NOTHING = Credentials()

ASKING: ContextVar[Caller | None] = ContextVar("asking", default=None)
"""Whose request is being carried out, for the audit: adapters set it where there are users."""

Admitted = Callable[[Access | CurbstoneError], None]


class Gate(Protocol):
    """See the module's docstring. Called on the host's thread."""

    connections: Connections
    """Who is connected."""
    generation: int
    """Another after each reload: what was found good before may count no more."""
    logins: dict[tuple[str, str], int]
    """How many there were, by protocol and outcome."""
    refusals: dict[str, int]
    """How many calls lacked a right, by its name."""
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

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """Somebody lacked a right."""

    def did(self, identity: Identity, action: str, target: str) -> None:
        """Somebody changed something that needs `manage` or `admin`."""


class OpenGate:
    """The gate of a server without users."""

    wants_login = False
    generation = 0

    def __init__(self, broker: Broker, host: Host) -> None:
        self.connections = Connections(host)
        self.logins: dict[tuple[str, str], int] = {}
        self.refusals: dict[str, int] = {}
        self.held_back: dict[str, int] = {}
        self.everyone: Access = Access(self, broker, local_identity(), lambda _project: None)
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

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """See `Gate.refused`."""

    def did(self, identity: Identity, action: str, target: str) -> None:
        """See `Gate.did`."""
