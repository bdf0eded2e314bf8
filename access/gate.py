"""The gate before the server: whoever comes shows credentials and gets an `Access`, or is refused.

Adapters take credentials off their wire and know `Gate`. `OpenGate` is that of a server without users, where everyone
is `local` and may everything; `access.login` has the one with users. Both know who is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from curbstone.access.door import Access
from curbstone.access.identity import Identity, local_identity
from curbstone.access.presence import Connections
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.port import Broker


class Peer(NamedTuple):
    """Where a client comes from, and how."""

    address: str
    port: int = 0
    protocol: str = ""
    certificate: tuple[str, ...] = ()
    """The names in its certificate, if the TLS handshake verified one."""

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

Admitted = Callable[[Access | CurbstoneError], None]


class Gate(Protocol):
    """See the module's docstring. Called on the host's thread."""

    connections: Connections
    """Who is connected."""

    @property
    def wants_login(self) -> bool:
        """Whether there are users; else everyone is let in as `local`."""

    @property
    def everyone(self) -> Access:
        """What the server itself does in the name of nobody, and what everyone may where there are no users."""

    def enter(self, credentials: Credentials, peer: Peer) -> Access | None:
        """Return what a client gets; None where its password has to be hashed first: then call `admit`.

        Raise NotLoggedIn or TooMany.
        """

    def admit(self, credentials: Credentials, peer: Peer, on_done: Admitted) -> None:
        """Call back with what a client gets, or with why it gets nothing; maybe before this returns."""

    def use_ticket(self, text: str, way: str, queue: QueueName | None, peer: Peer) -> Access:
        """Return what the owner of a ticket gets; raise NotLoggedIn where it is none for this."""

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """Somebody lacked a right."""

    def did(self, identity: Identity, action: str, target: str) -> None:
        """Somebody changed something that needs `manage` or `admin`."""


class OpenGate:
    """The gate of a server without users."""

    wants_login = False

    def __init__(self, broker: Broker, host: Host) -> None:
        self.connections = Connections(host)
        self.everyone: Access = Access(self, broker, local_identity(), lambda _project: None)

    def enter(self, _credentials: Credentials, _peer: Peer) -> Access:
        """See `Gate.enter`: what clients present is not looked at."""
        return self.everyone

    def admit(self, _credentials: Credentials, _peer: Peer, on_done: Admitted) -> None:
        """See `Gate.admit`."""
        on_done(self.everyone)

    def use_ticket(self, _text: str, _way: str, _queue: QueueName | None, _peer: Peer) -> Access:
        """See `Gate.use_ticket`."""
        return self.everyone

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """See `Gate.refused`."""

    def did(self, identity: Identity, action: str, target: str) -> None:
        """See `Gate.did`."""
