"""Who is at the other end of a connection, as far as the connection itself says it; and networks of such."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

_KINDS = {"DNS": "DNS", "URI": "URI", "email": "EMAIL"}
"""The names of a certificate that say whose it is, as Python calls their kinds and as we do."""
_SHORT = {
    **{"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"},
    **{"stateOrProvinceName": "ST", "localityName": "L", "streetAddress": "STREET", "domainComponent": "DC"},
    **{"userId": "UID"},
}
_SPECIAL = frozenset(',+"\\<>;')


class Certificate(NamedTuple):
    """What a verified client certificate says of its holder."""

    names: tuple[str, ...]
    """Its alternative names, with their kind: `URI:spiffe://example/orders`, `DNS:…`, `EMAIL:…`."""
    subject: str
    """Its subject as RFC 4514 writes it, the most specific part first: `CN=orders,O=Example`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One end of a connection. Behind a trusted proxy it is the proxy's client."""

    host: str
    """An address, for which IPv4 is never written as IPv6; "?" if there is none."""
    port: int
    tls: bool = False
    """Whether it speaks TLS, to us or to a trusted proxy."""
    certificate: Certificate | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


NOBODY = Peer("?", 0)


class Networks:
    """Some networks, as `10.0.0.0/8` or single addresses."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raise ValueError for what is neither a network nor an address."""
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in texts:
            try:
                self._networks.append(ip_network(text))
            except ValueError as error:
                raise ValueError(f"bad network {text!r}: an address, or a network as in 10.0.0.0/8 ({error})") from None

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        address = address_of(host)
        return address is not None and any(address in network for network in self._networks)


@lru_cache(maxsize=1024)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a text is, IPv4 if it is one in the form of IPv6; None for any other text."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def plain_host(host: str) -> str:
    """Return an address without the form that a socket for both IPs gives to IPv4, `::ffff:10.0.0.1`."""
    address = address_of(host) if host.startswith("::") else None
    return str(address) if isinstance(address, IPv4Address) else host


def certificate_of(fields: Mapping[str, Any]) -> Certificate:
    """Return what the fields of `ssl.SSLObject.getpeercert` say."""
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
