"""Where a client comes from, and what credentials it presents. The gate decides what it gets for them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol


class Certified(Protocol):
    """A verified client certificate."""

    @property
    def names(self) -> tuple[str, ...]:
        """The alternative names, with their kinds."""

    @property
    def subject(self) -> str:
        """The complete subject."""


class Asker(Protocol):
    """One end of a connection."""

    @property
    def host(self) -> str:
        """The address."""

    @property
    def port(self) -> int:
        """The port."""

    @property
    def certificate(self) -> Certified | None:
        """The client certificate, if one was verified."""


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
