"""Checks the framing rules of a request's head before anything else looks at it (RFC 9112). Pure.

A head that two programs could read in two ways is refused, and its connection is closed. Otherwise this server and a
proxy in front of it might disagree on where one request ends and the next begins, and a client could smuggle in
requests as another client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from curbstone.gateway.http.fields import Header
from curbstone.gateway.http.problem import Problem

VERSIONS = ("1.1", "1.0")

_SLASH = "\udc2f"
"""What `path_of` writes for `%2F`. No percent-encoded text decodes to it, because it is half of a surrogate pair."""
_ENCODED_SLASH = re.compile("%2[fF]")
_DEFAULT_PORTS = {b"http": b"80", b"https": b"443"}
_HOST = re.compile(rb"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(?::(?P<port>[0-9]{0,5}))?")
_ALLOW = ((b"allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS"),)


class Framing(NamedTuple):
    """The body's length and the requested server, from the head."""

    host: bytes
    """"" if missing, which only HTTP/1.0 allows."""
    length: int
    """The body's length; -1 for one in chunks."""
    expects_continue: bool
    """Whether the client sends the body only after a 100 (Continue)."""


class Target(NamedTuple):
    """The parts of a request target."""

    path: bytes
    query: bytes
    host: bytes
    """The server's name and port if the target has them, else b""."""


def not_http(version: str) -> Problem:
    """Return the problem for bytes that the parser can't read; `version` is what it has parsed of the version."""
    if version == "2.0":  # a client with "prior knowledge" begins with PRI * HTTP/2.0 (RFC 9113, 3.3)
        return Problem(505, "HTTP/2 is not supported; use HTTP/1.1")
    return Problem(400, "this is not HTTP/1.1")


def framing_of(version: str, fields: Sequence[Header]) -> Framing:
    """Return the framing that these fields (names in lower case) give together; raise Problem if they break a rule."""
    if version not in VERSIONS:
        raise Problem(505, "this version of HTTP is not supported; use HTTP/1.1 or HTTP/1.0")
    host = b""
    length = 0
    expects_continue = False
    for name, value in fields:
        if name == b"host":
            if host:
                raise Problem(400, "bad request: more than one Host field")
            _host_and_port(value)
            host = value
        elif name == b"content-length":
            length = int(value)  # the parser has checked that it is digits, and given once
        elif name == b"transfer-encoding":
            if length < 0 or value.lower() != b"chunked":
                raise Problem(400, "bad request: the only supported Transfer-Encoding is chunked, and only once")
            if version == "1.0":
                raise Problem(400, "bad request: HTTP/1.0 has no Transfer-Encoding")
            length = -1
        elif value.lower() == b"100-continue":
            expects_continue = True
    if not host and version == "1.1":
        raise Problem(400, "bad request: the Host field is missing")
    return Framing(host, length, expects_continue)


@lru_cache(maxsize=256)
def _host_and_port(value: bytes) -> tuple[bytes, bytes]:
    """Return the name (in lower case) and port of a Host, b"" for a missing port; raise Problem."""
    match = _HOST.fullmatch(value)
    if match is None:
        raise Problem(400, "bad request: the Host field must be a name or an address, optionally with a port")
    return match["name"].lower(), match["port"] or b""


def target_of(method: str, url: bytes, host: bytes) -> Target:
    """Parse a request target; raise Problem if it names another server than `host` or has no allowed form."""
    if method == "CONNECT":
        raise Problem(405, "CONNECT is not allowed: this is not a proxy", _ALLOW)
    try:
        parts = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise Problem(400, "bad request: the target is neither a path nor a URL") from None
    authority = b"" if parts.schema is None else _authority_of(url, parts.schema.lower(), host)
    return Target(parts.path or b"/", parts.query or b"", authority)


def _authority_of(url: bytes, scheme: bytes, host: bytes) -> bytes:
    """Return the name and port in a URL; raise Problem if there is a Host field that names another server."""
    port = _DEFAULT_PORTS.get(scheme)
    if port is None:
        raise Problem(400, "bad request: the target's scheme is neither http nor https")
    authority = re.split(rb"[/?#]", url.partition(b"://")[2], maxsplit=1)[0]
    name, its_port = _host_and_port(authority)
    if host:
        other_name, other_port = _host_and_port(host)
        if (name, its_port or port) != (other_name, other_port or port):
            raise Problem(400, "bad request: the target and the Host field name different servers")
    return authority


def path_of(raw_path: bytes) -> str:
    """Return a path percent-decoded. An encoded slash stays apart: `event_in` reads it."""
    path = raw_path.decode("ascii")
    return _SLASH.join(map(unquote, _ENCODED_SLASH.split(path))) if "%" in path else path


def event_in(part: str) -> str:
    """Return the name of an event, or the id of a batch, that is `part` of a path which `path_of` decoded."""
    return part.replace(_SLASH, "/")


def has_wrong_slash(path: str) -> bool:
    """Return whether a decoded path has an encoded slash anywhere but in the name of an event or the id of a batch."""
    if _SLASH not in path:
        return False
    parts = path.split("/")
    place = 4 if parts[3:4] == ["events"] else 6 if parts[3:6:2] == ["queues", "batches"] else 0
    return any([_SLASH in part for part in (*parts[:place], *parts[place + 1 :])])
