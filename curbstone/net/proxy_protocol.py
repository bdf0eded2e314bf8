"""The PROXY protocol, versions 1 and 2: a header in which a proxy sends the address of its client. Pure.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import NamedTuple

from curbstone.net.limits import PROXY_HEADER_BYTES_MAX
from curbstone.net.peer import plain_host

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"

_LINE_BYTES_MAX = 107
_HEAD = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_IPV4, _IPV6 = 0x11, 0x21
_ADDRESS_BYTES = {_IPV4: 4, _IPV6: 16}
_NAMELESS = (0x00, 0x31, 0x32)
"""Address families without an internet address: "unspecified", and Unix sockets on the proxy's machine."""
_TLS_FIELD = 0x20
_CLIENT_TLS = 0x01


class BadHeader(ValueError):
    """The bytes are not a PROXY header."""


class Header(NamedTuple):
    host: str
    """The address of the proxy's client; "" if the proxy connects for itself, for example for a health check."""
    port: int
    tls: bool
    """Whether the client uses TLS to the proxy."""
    size: int
    """The length of the header in bytes."""


def read_header(data: bytes) -> Header | None:
    """Return the header at the start of `data`, or None if more bytes are needed; raise BadHeader."""
    if data[:12] == SIGNATURE[: len(data)]:
        return _binary(data) if len(data) >= _HEAD.size else None
    if data[:6] == b"PROXY "[: len(data)]:
        return _line(data)
    raise BadHeader("it does not begin with a PROXY header")


def _line(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= _LINE_BYTES_MAX:
            raise BadHeader("the PROXY line is too long")
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return Header("", 0, False, end + 2)
    version = {"TCP4": 4, "TCP6": 6}.get(words[1])
    if version is None or len(words) != 6:
        raise BadHeader("bad PROXY line: expected TCP4 or TCP6, two addresses, two ports")
    try:
        host = ip_address(words[2])
    except ValueError:
        raise BadHeader("the PROXY line has a bad address") from None
    if host.version != version:
        raise BadHeader("the PROXY line has an address of another family")
    port = words[4]
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadHeader("the PROXY line has a bad port")
    return Header(plain_host(str(host)), int(port), False, end + 2)


def _binary(data: bytes) -> Header | None:
    _, command, family, length = _HEAD.unpack_from(data)
    size = _HEAD.size + length
    if size > PROXY_HEADER_BYTES_MAX:
        raise BadHeader(f"the PROXY header is larger than {PROXY_HEADER_BYTES_MAX} bytes")
    if command not in (_LOCAL, _PROXY):
        raise BadHeader("the PROXY header has an unknown version or command")
    if len(data) < size:
        return None
    if command == _LOCAL:
        return Header("", 0, False, size)
    width = _ADDRESS_BYTES.get(family)
    if width is None:
        if family not in _NAMELESS:
            raise BadHeader("the PROXY header is not for TCP")
        return Header("", 0, False, size)
    fields_at = _HEAD.size + 2 * width + 4
    if fields_at > size:
        raise BadHeader("the PROXY header is shorter than its addresses")
    host = ip_address(data[_HEAD.size : _HEAD.size + width])
    port = int.from_bytes(data[_HEAD.size + 2 * width : _HEAD.size + 2 * width + 2], "big")
    return Header(plain_host(str(host)), port, _is_tls(data[fields_at:size]), size)


def _is_tls(fields: bytes) -> bool:
    """Return whether the fields after the addresses say that the client uses TLS."""
    while len(fields) >= 3:
        kind, length = fields[0], int.from_bytes(fields[1:3], "big")
        value, fields = fields[3 : 3 + length], fields[3 + length :]
        if len(value) < length:
            raise BadHeader("the PROXY header ends within a field")
        if kind == _TLS_FIELD:
            return bool(value[:1]) and bool(value[0] & _CLIENT_TLS)
    if fields:
        raise BadHeader("the PROXY header ends within a field")
    return False
