"""For whom a trusted proxy asks, and whether that one speaks TLS: X-Forwarded-For and -Proto, or Forwarded. Pure.

Each proxy adds where it was called from at the end. So the end is believed, back to the first address that is no
trusted proxy's; what stands before that anybody may have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from curbstone.gateway.http.problem import Problem
from curbstone.net.peer import Networks, Peer, address_of

FIELD_CHARS_MAX = 2048
"""What proxies write is far shorter; what stands before that a client may have written to keep us busy."""

# One pair and what ends it. It is matched at one place after the other, never searched for: that takes no longer than
# the field is long, whatever it holds.
_PAIR = re.compile(r'[ \t]*(?:([A-Za-z]+)=("(?:[^"\\]|\\.)*+"|[^\s;,"]*+)[ \t]*)?([;,]|$)')
_SCHEMES = {"http": False, "https": True}


class _Hop(NamedTuple):
    host: str
    """"" if a proxy does not say it."""
    port: int
    scheme: str


def asker_of(fields: Sequence[tuple[bytes, bytes]], proxy: Peer, trusted: Networks) -> Peer:
    """Return who asks through a trusted proxy, which is the proxy if it says nothing; raise Problem.

    Most proxies write one kind of field and hand the other on as their client sent it. So if there are both they
    must name the same.
    """
    values: dict[bytes, str] = {}
    for name, value in fields:
        if name in (b"x-forwarded-for", b"x-forwarded-proto", b"forwarded"):
            text = value.decode("latin-1")
            values[name] = f"{values[name]},{text}" if name in values else text
    if not values:
        return proxy
    if any([len(value) > FIELD_CHARS_MAX for value in values.values()]):
        raise Problem(400, f"bad request: Forwarded and X-Forwarded-For have at most {FIELD_CHARS_MAX} bytes")
    scheme = values.get(b"x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    hops = [_hop(text, scheme) for text in values.get(b"x-forwarded-for", "").split(",")]
    asker = _asker(hops, proxy, trusted, scheme)
    if b"forwarded" in values:
        other = _asker(list(_elements(values[b"forwarded"])), proxy, trusted, "")
        if b"x-forwarded-for" in values and asker.host != other.host:
            raise Problem(400, "bad request: Forwarded and X-Forwarded-For name two clients")
        return other
    return asker


def _asker(hops: Sequence[_Hop], proxy: Peer, trusted: Networks, scheme: str) -> Peer:
    """Go back along the hops; `scheme` is what counts if none of them is known."""
    asker = Peer(proxy.host, proxy.port, _SCHEMES.get(scheme, proxy.tls), proxy.certificate)
    for hop in reversed(hops):
        if not hop.host:
            break
        asker = Peer(hop.host, hop.port, _SCHEMES.get(hop.scheme, False))
        if hop.host not in trusted:
            break
    return asker


def _hop(text: str, scheme: str) -> _Hop:
    """Return an address that may have brackets and a port, as `[2001:db8::1]:4711`."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    address = address_of(host)
    known = port.isascii() and port.isdigit() and len(port) <= 5
    return _Hop("" if address is None else str(address), int(port) if known else 0, scheme)


def _elements(value: str) -> Iterator[_Hop]:
    """Yield the elements of Forwarded (RFC 7239 section 4); raise Problem for what is none."""
    pairs: dict[str, str] = {}
    end = 0
    while True:
        pair = _PAIR.match(value, end)
        if pair is None:
            raise Problem(400, "bad request: Forwarded is no list of name=value")
        name, text, separator = pair.groups()
        end = pair.end()
        if name:
            pairs[name.lower()] = _unquoted(text)
        if separator != ";":
            yield _hop(pairs.get("for", ""), pairs.get("proto", "").lower())
            pairs = {}
        if not separator:
            return


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
