"""Where a client comes from, and what credentials it presents. The gate decides what it gets for them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

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
