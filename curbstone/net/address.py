"""The addresses of listeners: host, port, and whether they use TLS or the PROXY protocol."""

from __future__ import annotations

from typing import NamedTuple

from curbstone.net.peer import is_loopback

LOOPBACK = "127.0.0.1"

_SCHEMES = {"": (False, False), "tls": (True, False), "proxy": (False, True), "proxy+tls": (True, True)}
"""Whether each scheme means TLS and the PROXY protocol."""


class Address(NamedTuple):
    """The address of a listener; port 0 picks a free port."""

    host: str
    port: int
    tls: bool = False
    proxy: bool = False
    """Whether each connection begins with a PROXY header, before TLS."""

    def __str__(self) -> str:
        scheme = next(scheme for scheme, (tls, proxy) in _SCHEMES.items() if (tls, proxy) == (self.tls, self.proxy))
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" if scheme else f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect. False for host names other than localhost."""
        return self.host == "localhost" or is_loopback(self.host)


def parse_address(text: str) -> Address | None:
    """Parse "host:port", "[::1]:port" or ":port" (loopback), or return None for "off" and "". Raise ValueError.

    A prefix tls://, proxy:// or proxy+tls:// is allowed.
    """
    text = text.strip()
    if text in ("", "off"):
        return None
    scheme, mark, rest = text.rpartition("://")
    if scheme not in _SCHEMES or bool(scheme) != bool(mark):
        raise ValueError(f"bad address {text!r}: expected tls, proxy or proxy+tls before ://")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise ValueError(f"bad address {text!r}: write an IPv6 address in brackets, as in [::1]:8080")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"bad address {text!r}: host:port, :port or [::1]:port with a port from 0 to 65535, or off")
    return Address(host or LOOPBACK, int(port), *_SCHEMES[scheme])
