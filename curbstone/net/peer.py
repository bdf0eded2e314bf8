"""The other end of a connection: its address, its client certificate, and the networks it may be in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

_KINDS = {"DNS": "DNS", "URI": "URI", "email": "EMAIL"}
"""The kinds of alternative names that identify a certificate's holder, with their names in the users file."""
_SHORT = {
    **{"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"},
    **{"stateOrProvinceName": "ST", "localityName": "L", "streetAddress": "STREET", "domainComponent": "DC"},
    **{"userId": "UID"},
}
_SPECIAL = frozenset(',+"\\<>;')


class Certificate(NamedTuple):
    """The names in a verified client certificate."""

    names: tuple[str, ...]
    """The alternative names, each with its kind: `URI:spiffe://example/orders`, `DNS:…`, `EMAIL:…`."""
    subject: str
    """The subject in the form of RFC 4514, the most specific part first: `CN=orders,O=Example`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection. Behind a trusted proxy, this is the proxy's client."""

    host: str
    """The address; IPv4 is never in its IPv6-mapped form. "?" if there is none."""
    port: int
    tls: bool = False
    """Whether the client uses TLS, to this server or to a trusted proxy."""
    certificate: Certificate | None = None

    @property
    def source(self) -> str:
        """The address; for IPv6 its first 64 bits, because a single client has at least 2^64 addresses."""
        return source_of(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


NOBODY = Peer("?", 0)


class Networks:
    """A set of networks, such as `10.0.0.0/8`, and single addresses."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raise ValueError for a text that is neither a network nor an address."""
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in texts:
            try:
                self._networks.append(ip_network(text))
            except ValueError as error:
                expected = "expected an address, or a network such as 10.0.0.0/8"
                raise ValueError(f"bad network {text!r}: {expected} ({error})") from None

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        address = address_of(host)
        return address is not None and any(address in network for network in self._networks)


@lru_cache(maxsize=1024)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a text, or None if it is not one. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def plain_host(host: str) -> str:
    """Return `10.0.0.1` for `::ffff:10.0.0.1`, the form in which dual-stack sockets report IPv4 peers."""
    address = address_of(host) if host.startswith("::") else None
    return str(address) if isinstance(address, IPv4Address) else host


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback address."""
    address = address_of(host)
    return address is not None and address.is_loopback


@lru_cache(maxsize=1024)
def network_of(host: str, bits_of_4: int, bits_of_6: int) -> str:
    """Return the network of an address, with these prefix lengths for IPv4 and IPv6; `host` if it is no address."""
    address = address_of(host)
    if address is None:
        return host
    return str(ip_network((address, bits_of_6 if isinstance(address, IPv6Address) else bits_of_4), strict=False))


def source_of(host: str) -> str:
    """Return the key that the connections and failures of a client are counted by; see `Peer.source`."""
    return network_of(host, 32, 64).removesuffix("/32")


def certificate_of(fields: Mapping[str, Any]) -> Certificate:
    """Return the names in a result of `ssl.SSLObject.getpeercert`."""
    names = [f"{_KINDS[kind]}:{value}" for kind, value in fields.get("subjectAltName", ()) if kind in _KINDS]
    parts = [
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in fields["subject"]
    ]
    return Certificate(tuple(names), ",".join(reversed(parts)))


def _escaped(value: str) -> str:
    text = "".join(f"\\{char}" if char in _SPECIAL else char for char in value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if len(text) > 1 and text.endswith(" ") else text
