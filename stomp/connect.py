"""CONNECT: negotiates the version, the heart-beats and the extensions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curbstone.access.caller import Credentials
from curbstone.stomp import extensions
from curbstone.stomp.codec import V10, V12, VERSIONS, Head
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.limits import Limits

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker

_HEART_BEAT = re.compile(r"([0-9]{1,10}),([0-9]{1,10})", re.ASCII)
_HTTP = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) ")

HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 45\r\nConnection: close\r\n\r\n"
    b"This is a STOMP port, HTTP is on another one\n"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What client and server agreed on at CONNECT."""

    version: str
    server_beats_ms: int
    """The longest time between two writes of the server; 0 for no limit."""
    client_beats_ms: int
    """The longest time between two writes of the client; 0 for no limit."""
    extensions: frozenset[str]
    """The extensions that the client asked for and gets."""


def agree(head: Head, limits: Limits) -> Agreement:
    """Return the agreement for a CONNECT or STOMP frame; raise ProtocolError if there can be none.

    The header `host` is accepted and ignored.
    """
    version = _version(head)
    client_sends, client_wants = _heart_beat(head)
    if version == V10:
        # STOMP 1.0 has no heart-beats. stompjs offers them in 1.0 but then does not send them.
        client_sends = client_wants = 0
    server_sends = max(client_wants, limits.heart_beat_ms_min) if client_wants else 0
    agreed = extensions.known(head.headers.get("x-features", "")) if version == V12 else frozenset()
    return Agreement(version, server_sends, client_sends, agreed)


def credentials_of(head: Head) -> Credentials:
    """Return the credentials in a CONNECT: `login` and `passcode`, or a token as `Authorization: Bearer`."""
    scheme, _, token = head.headers.get("Authorization", head.headers.get("authorization", "")).partition(" ")
    if scheme.lower() == "bearer":
        return Credentials("", token.strip())
    return Credentials(head.headers.get("login", ""), head.headers.get("passcode", ""))


def expiry(access: AuthorizedBroker, wall_ms: int) -> tuple[str, ...]:
    """Return the header lines with the expiry of a login, as a time and as a duration in ms; none without expiry."""
    expires_ms = access.identity.expires_ms
    return (f"expires:{expires_ms}", f"x-expires-in:{max(expires_ms - wall_ms, 0)}") if expires_ms else ()


def _version(head: Head) -> str:
    # Without accept-version the client speaks 1.0 (§ Protocol Negotiation); the order of the list is not significant.
    accepted = head.headers.get("accept-version")
    if accepted is None:
        return V10
    offered = {part.strip() for part in accepted.split(",")}
    for version in reversed(VERSIONS):
        if version in offered:
            return version
    raise ProtocolError(
        f"supported protocol versions are {', '.join(VERSIONS)}",
        head.lines["accept-version"],
        headers=(f"version:{','.join(VERSIONS)}",),
    )


def _heart_beat(head: Head) -> tuple[int, int]:
    text = head.headers.get("heart-beat", "0,0")
    match = _HEART_BEAT.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ProtocolError(
            "heart-beat must be two whole numbers of milliseconds, separated by a comma", head.lines["heart-beat"]
        )
    return int(match[1]), int(match[2])


def greeting_of_another_protocol(line: bytes) -> str:
    """Return "http" or "tls" if the first line of a connection is that protocol's, else an empty string."""
    if _HTTP.match(line):
        return "http"
    return "tls" if line.startswith(b"\x16\x03") else ""
