"""Authentication: a client presents credentials and gets an `AuthorizedBroker`, or is refused.

Adapters read the credentials from their protocol and use only `Authenticator`. `OpenAuthenticator` is for servers
without users, where every client is `local` and has all rights. `access.user_authenticator` has the one for users. Both
keep the list of open connections.
"""

from __future__ import annotations

from typing import Protocol

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller, Credentials
from curbstone.access.connections import Admitted, Connections
from curbstone.access.identity import local_identity
from curbstone.access.registries import Registries
from curbstone.core.host import Host
from curbstone.core.names import QueueName
from curbstone.core.port import Broker


class Authenticator(Protocol):
    """Turns credentials into an `AuthorizedBroker`. Called on the host's thread."""

    connections: Connections
    registries: Registries
    """The audit log and the registries that all `AuthorizedBroker` share."""
    generation: int
    """Changes with each reload; a login checked in an earlier generation may no longer be valid."""
    logins: dict[tuple[str, str], int]
    """The number of logins, by protocol and outcome."""
    held_back: dict[str, int]
    """How often a user's rate limit held back a connection or a request, by protocol."""

    @property
    def wants_login(self) -> bool:
        """Whether there are users. If not, every client is admitted as `local`."""

    @property
    def everyone(self) -> AuthorizedBroker:
        """The access of the server itself, and of every client if there are no users."""

    @property
    def anonymous(self) -> AuthorizedBroker:
        """The access of a client that has not logged in."""

    def enter(self, credentials: Credentials, caller: Caller) -> AuthorizedBroker | None:
        """Return the client's access, or None if its credentials take time to check; then call `admit`.

        Raise NotLoggedIn or TooMany.
        """

    def admit(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        """Call back with the client's access or with the reason for refusing it, possibly before this returns."""

    def use_ticket(self, text: str, way: str, queue: QueueName | None, caller: Caller) -> AuthorizedBroker:
        """Return the access of a ticket's owner; raise NotLoggedIn if it is not a ticket for this purpose and queue."""


class OpenAuthenticator:
    """The authenticator of a server without users."""

    wants_login = False
    generation = 0

    def __init__(self, broker: Broker, host: Host) -> None:
        self.connections = Connections(host, self.admit)
        self.registries = Registries(host)
        self.logins: dict[tuple[str, str], int] = {}
        self.held_back: dict[str, int] = {}
        self.everyone: AuthorizedBroker = AuthorizedBroker(
            self.registries, broker, local_identity(), lambda _project: None
        )
        self.anonymous = self.everyone

    def enter(self, _credentials: Credentials, _caller: Caller) -> AuthorizedBroker:
        return self.everyone

    def admit(self, _credentials: Credentials, _caller: Caller, on_done: Admitted) -> None:
        on_done(self.everyone)

    def use_ticket(self, _text: str, _way: str, _queue: QueueName | None, _caller: Caller) -> AuthorizedBroker:
        return self.everyone
