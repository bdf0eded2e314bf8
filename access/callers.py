"""Who comes: where a client is, and what it presents. What becomes of that is the gate's to say."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol


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
