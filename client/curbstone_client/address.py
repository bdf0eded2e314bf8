"""Where a server is: what a URL says, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 8080, "https": 443, "stomp": 61613, "stomps": 61614}


@dataclass(frozen=True, slots=True)
class Address:
    """One server. `http` and `https`: STOMP goes through the WebSocket `/stomp`; `stomp` and `stomps`: over TCP."""

    scheme: str
    host: str
    port: int
    path: str = ""
    """In front of `/stomp` and `/v2`, where a proxy has one."""

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme in ("https", "stomps")

    @property
    def is_websocket(self) -> bool:
        """Whether STOMP goes through a WebSocket; then HTTP calls go the same way."""
        return self.scheme in ("http", "https")

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> Address:
    """Return the address; raise ValueError with the rule that a URL breaks."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in _PORTS:
        raise ValueError(f"an address begins with http, https, stomp or stomps, not {parts.scheme!r}")
    if "@" in parts.netloc:
        raise ValueError("no user or password in an address; give a token")
    if not parts.hostname:
        raise ValueError("an address names a host")
    try:
        parts.hostname.encode("idna")  # as the system's look-up will do
    except UnicodeError as error:
        raise ValueError(f"an address names a host, and {parts.hostname!r} is none: {error}") from None
    if parts.query or parts.fragment:
        raise ValueError("an address has no query")
    return Address(scheme, parts.hostname, parts.port or _PORTS[scheme], parts.path.rstrip("/"))
