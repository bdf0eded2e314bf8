"""A client: its address, its credentials, and how other users see it as a holder of messages.

Users who may manage the queue, and the user itself, see a client's address, user and ids. All others see only its
protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from curbstone.access.identity import Identity
from curbstone.access.rights import Right
from curbstone.access.users import ANONYMOUS
from curbstone.core.names import QueueName
from curbstone.core.values import ClientInfo, Holder

if TYPE_CHECKING:
    from curbstone.net.peer import Peer


class Caller(NamedTuple):
    """The address and protocol of a client."""

    address: str
    port: int = 0
    protocol: str = ""
    certificate: tuple[str, ...] = ()
    """The names in its client certificate, if the TLS handshake verified one."""

    @classmethod
    def of(cls, peer: Peer, protocol: str) -> Caller:
        """Return the caller at the other end of a connection."""
        certificate = peer.certificate
        names = (*certificate.names, certificate.subject) if certificate is not None else ()
        return cls(peer.host, peer.port, protocol, names)

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Credentials(NamedTuple):
    """A client's credentials. A token is in `secret`, with or without its user."""

    user: str = ""
    secret: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the client presents no credentials."""
        return not self.user and not self.secret


NO_CREDENTIALS = Credentials()

CURRENT_CALLER: ContextVar[Caller | None] = ContextVar("current_caller", default=None)
"""The client whose request is being processed, for the audit log. Adapters set it if there are users."""

ID_CHARS = 80
"""How many characters of an id are kept that a client has chosen."""


def client_info_of(caller: Caller, identity: Identity, client: str = "", subscription: str = "") -> ClientInfo:
    """Return the description of a client that is stored with its subscription or lease."""
    user = identity.user if identity.owner else ""  # without users there are no logins
    return ClientInfo(caller.protocol, caller.address, caller.port, user, client[:ID_CHARS], subscription[:ID_CHARS])


def shown(identity: Identity, name: QueueName, holders: Iterable[Holder]) -> list[Holder]:
    """Return the holders of a queue, with the details that the identity may see."""
    if identity.on_queue(name) & Right.MANAGE:
        return list(holders)
    user = "" if identity.user == ANONYMOUS else identity.user
    return [
        each
        if user and each.client_info.user == user
        else each._replace(client_info=ClientInfo(each.client_info.protocol))
        for each in holders
    ]
