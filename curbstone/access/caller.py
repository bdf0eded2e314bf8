"""A client: where it comes from, what credentials it presents, and how it is shown to others as a holder of messages.

The address, the user and the ids of a client are for those who may manage the queue, and for the user itself. All
others who may look at the queue see only the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from curbstone.access.identity import Identity
from curbstone.access.rights import Right
from curbstone.access.users import ANONYMOUS
from curbstone.core.names import QueueName
from curbstone.core.values import Holder, Who

if TYPE_CHECKING:
    from curbstone.net.peer import Peer


class Caller(NamedTuple):
    """Where a client comes from, and how."""

    address: str
    port: int = 0
    protocol: str = ""
    certificate: tuple[str, ...] = ()
    """The names in its certificate, if the TLS handshake verified one."""

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
    def is_nothing(self) -> bool:
        """Whether the client presents no credentials."""
        return not self.user and not self.secret


NOTHING = Credentials()

ASKING: ContextVar[Caller | None] = ContextVar("asking", default=None)
"""Whose request is being carried out, for the audit. Adapters set it if there are users."""

ID_CHARS = 80
"""How much of an id that a client gave is kept."""


def who_of(caller: Caller, identity: Identity, client: str = "", subscription: str = "") -> Who:
    """Return what is kept of a client with a subscription or a lease; see `core.values.Who`."""
    user = identity.user if identity.owner else ""  # without users there are no logins
    return Who(caller.protocol, caller.address, caller.port, user, client[:ID_CHARS], subscription[:ID_CHARS])


def shown(identity: Identity, name: QueueName, holders: Iterable[Holder]) -> list[Holder]:
    """Return the holders of a queue as an identity may see them; see the module's docstring."""
    if identity.on_queue(name) & Right.MANAGE:
        return list(holders)
    user = "" if identity.user == ANONYMOUS else identity.user
    return [each if user and each.who.user == user else each._replace(who=Who(each.who.protocol)) for each in holders]
