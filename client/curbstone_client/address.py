"""The address of a server, parsed from a URL. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 8080, "https": 443, "stomp": 61613, "stomps": 61614}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one server.

    With the schemes `http` and `https`, STOMP goes through the WebSocket at `/stomp`; with `stomp` and `stomps` it goes
    over TCP.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    """The prefix of `/stomp` and `/v2`, if a proxy adds one."""

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme in ("https", "stomps")

    @property
    def is_websocket(self) -> bool:
        """Whether STOMP goes through a WebSocket; then the address also has HTTP."""
        return self.scheme in ("http", "https")

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> Address:
    """Parse a URL. Raise ValueError with the broken rule if it is not valid."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in _PORTS:
        raise ValueError(f"an address must begin with http, https, stomp or stomps, not {parts.scheme!r}")
    if "@" in parts.netloc:
        raise ValueError("an address can't contain a user or password; give a token")
    if not parts.hostname:
        raise ValueError("an address must have a host")
    try:
        parts.hostname.encode("idna")  # as the resolver encodes it
    except UnicodeError as error:
        raise ValueError(f"bad host {parts.hostname!r} in an address: {error}") from None
    if parts.query or parts.fragment:
        raise ValueError("an address can't have a query")
    return Address(scheme, parts.hostname, parts.port or _PORTS[scheme], parts.path.rstrip("/"))
