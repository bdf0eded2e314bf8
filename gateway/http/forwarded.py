"""The client behind a trusted proxy, and whether it uses TLS: X-Forwarded-For and -Proto, or Forwarded. Pure.

Each proxy appends the address that called it. So the list is trusted from its end back to the first address that is
not a trusted proxy's. Any client may have written the addresses before that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from curbstone.gateway.http.problem import Problem
from curbstone.net.peer import Networks, Peer, address_of

FIELD_CHARS_MAX = 2048
"""The longest list that is read. Proxies write far shorter lists; a client may send a longer one to waste CPU."""

# One pair and its separator. It is matched at successive positions and never searched for, so the time is linear in
# the length of any field.
_PAIR = re.compile(r'[ \t]*(?:([A-Za-z]+)=("(?:[^"\\]|\\.)*+"|[^\s;,"]*+)[ \t]*)?([;,]|$)')
_SCHEMES = {"http": False, "https": True}


class _Hop(NamedTuple):
    host: str
    """"" if the proxy does not state it."""
    port: int
    scheme: str


def client_of(fields: Sequence[tuple[bytes, bytes]], proxy: Peer, trusted: Networks) -> Peer:
    """Return the client behind a trusted proxy, or the proxy if it names none; raise Problem.

    Most proxies write one of the two kinds of field, and forward the other as their client sent it. So if a request has
    both, they must name the same client.
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
    client = _client_of_hops(hops, proxy, trusted, scheme)
    if b"forwarded" in values:
        other = _client_of_hops(list(_elements(values[b"forwarded"])), proxy, trusted, "")
        if b"x-forwarded-for" in values and client.host != other.host:
            raise Problem(400, "bad request: Forwarded and X-Forwarded-For name different clients")
        return other
    return client


def _client_of_hops(hops: Sequence[_Hop], proxy: Peer, trusted: Networks, scheme: str) -> Peer:
    """Go back along the hops to the client; `scheme` is the proxy's own if no hop is known."""
    client = Peer(proxy.host, proxy.port, _SCHEMES.get(scheme, proxy.tls), proxy.certificate)
    for hop in reversed(hops):
        if not hop.host:
            break
        client = Peer(hop.host, hop.port, _SCHEMES.get(hop.scheme, False))
        if hop.host not in trusted:
            break
    return client


def _hop(text: str, scheme: str) -> _Hop:
    """Parse an address that may have brackets and a port, such as `[2001:db8::1]:4711`."""
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
    """Yield the elements of Forwarded (RFC 7239 section 4); raise Problem if it is malformed."""
    pairs: dict[str, str] = {}
    end = 0
    while True:
        pair = _PAIR.match(value, end)
        if pair is None:
            raise Problem(400, "bad request: Forwarded must be a list of name=value")
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
