"""Authentication: a client presents credentials and gets an `AuthorizedBroker`, or is refused.

Adapters read the credentials from their protocol and know only `Authenticator`. `OpenAuthenticator` is for servers
without users, where everyone is `local` and may do everything. `access.user_authenticator` has the one with users. Both
know who is connected.
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
    """Turns credentials into an `AuthorizedBroker`; see the module's docstring. Called on the host's thread."""

    connections: Connections
    """The open connections."""
    registries: Registries
    """The audit and registries that all `AuthorizedBroker` share."""
    generation: int
    """Changes with each reload, after which a login that was good may not be any more."""
    logins: dict[tuple[str, str], int]
    """How many logins there were, by protocol and outcome."""
    held_back: dict[str, int]
    """How often a user's rate held back a connection or a request, by protocol."""

    @property
    def wants_login(self) -> bool:
        """Whether there are users. If not, everyone is admitted as `local`."""

    @property
    def everyone(self) -> AuthorizedBroker:
        """The access of the server itself, and of everyone if there are no users."""

    @property
    def anonymous(self) -> AuthorizedBroker:
        """The access of a client that has not logged in, which allows only what needs no login."""

    def enter(self, credentials: Credentials, caller: Caller) -> AuthorizedBroker | None:
        """Return the client's access; None if its credentials take time to check: then call `admit`.

        Raise NotLoggedIn or TooMany.
        """

    def admit(self, credentials: Credentials, caller: Caller, on_done: Admitted) -> None:
        """Call back with the client's access, or with the error that refuses it; maybe before this returns."""

    def use_ticket(self, text: str, way: str, queue: QueueName | None, caller: Caller) -> AuthorizedBroker:
        """Return the access of a ticket's owner; raise NotLoggedIn if it is not a ticket for this use."""


class OpenAuthenticator:
    """The authentication of a server without users."""

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
        """Return the access of everyone, whatever the credentials."""
        return self.everyone

    def admit(self, _credentials: Credentials, _caller: Caller, on_done: Admitted) -> None:
        on_done(self.everyone)

    def use_ticket(self, _text: str, _way: str, _queue: QueueName | None, _caller: Caller) -> AuthorizedBroker:
        return self.everyone
