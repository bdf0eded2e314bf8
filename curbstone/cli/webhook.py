"""Sends a message as an HTTP request to a URL, signed as Standard Webhooks specifies, and interprets the response.

Requests go only to public addresses, unless private ones are allowed: otherwise every publisher could reach services
in the private network of this machine. The name is resolved once per connection, and the connection goes to the address
that was checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.http_client import ERRORS, Connection, within
from curbstone.net.peer import address_of

if TYPE_CHECKING:
    from curbstone_client.sync import Message

_AGAIN = (408, 425, 429)
"""The 4xx statuses after which a message is retried."""

_ANSWER_BYTES_MAX = 64 * 1024
"""The limit for reading a response, whose contents are ignored and whose sender is not trusted."""

_PASSED = ("traceparent", "tracestate", "baggage", "correlation-id")


_NAME, _VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[\t -~]*")
"""The headers that are valid in HTTP. Others are left out, because a message with one could never be sent."""

_EMBEDDED = {ip_network("::/96"): 0, ip_network("64:ff9b::/96"): 0, ip_network("2002::/16"): 80}
"""IPv6 networks whose addresses embed an IPv4 address, with its offset in bits from the right."""
_LOCAL = (ip_network("64:ff9b:1::/48"), ip_network("fec0::/10"))
"""Networks for one site's own use that `ipaddress` takes for global in some versions."""


class Refused(Exception):
    """The receiver refuses this message permanently."""


class Failed(Exception):
    """The receiver did not accept the message this time. `retry_after` is the receiver's Retry-After, in seconds."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def secret_of(text: str) -> bytes:
    """Return the key in a secret file, whose text is `whsec_` and base64, or any other text."""
    text = text.strip()
    if not text:
        raise CommandFailed("the secret file is empty", WRONG)
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise CommandFailed("the secret after whsec_ must be base64", WRONG) from None


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


@dataclass(frozen=True, slots=True)
class Target:
    """The URL that messages are sent to, with its options."""

    url: str
    secret: bytes | None
    timeout_s: float
    allow_private: bool

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise CommandFailed("--url must be http:// or https:// with a host, and no user or password in it", WRONG)


class Sender:
    """Sends messages to a target, one by one, over a persistent connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._parts = urlsplit(target.url)
        origin = self._parts._replace(path="", query="", fragment="").geturl()
        self._connection = Connection(origin, timeout_s=target.timeout_s, connect=self._connect)

    def send(self, message: Message) -> None:
        """Send a message; return once the receiver has accepted it. Raise Refused or Failed."""
        was_open = self._connection.is_open
        try:
            status, retry_after = self._post(message)
        except ERRORS as error:
            self._connection.close()
            # The receiver may have closed a kept connection before this request, so try a new one.
            if not was_open or isinstance(error, TimeoutError):
                raise Failed(f"{type(error).__name__}: {error}") from None
            self.send(message)
            return
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _AGAIN:
            raise Refused(f"the receiver answered {status}")
        raise Failed(f"the receiver answered {status}", retry_after)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _post(self, message: Message) -> tuple[int, float | None]:
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        with within(self._target.timeout_s, self._connection.connect()):
            reply = self._connection.request(
                "POST", path, body=message.body, headers=self._headers(message), bytes_max=_ANSWER_BYTES_MAX
            )
        retry_after = reply.headers.get("retry-after") or ""
        return reply.status, float(retry_after) if retry_after.isdigit() else None

    def _headers(self, message: Message) -> Mapping[str, str]:
        raw = message.raw_headers
        headers = {name: raw[name] for name in raw if name.startswith("x-msg-") or name in _PASSED}
        headers["Content-Type"] = message.type or "application/octet-stream"
        headers = {name: value for name, value in headers.items() if _NAME.fullmatch(name) and _VALUE.fullmatch(value)}
        headers.setdefault("Content-Type", "application/octet-stream")
        now = int(time.time())
        headers["User-Agent"] = "curbstone"
        headers |= {"webhook-id": message.id, "webhook-timestamp": str(now)}
        if self._target.secret is not None:
            headers["webhook-signature"] = signature(self._target.secret, message.id, now, message.body)
        return headers

    def _connect(self) -> socket.socket:
        host = self._parts.hostname or ""
        is_tls = self._parts.scheme == "https"
        port = self._parts.port or (443 if is_tls else 80)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        allowed = [each for each in found if self._target.allow_private or _is_public(str(each[4][0]))]
        if not allowed:
            raise Failed(f"{host} is not a public address; --allow-private allows it")
        family, kind, protocol, _, address = allowed[0]
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(self._target.timeout_s)
            connected.connect(address)
            if is_tls:
                context = ssl.create_default_context()
                connected = secured = context.wrap_socket(
                    connected, server_hostname=host, do_handshake_on_connect=False
                )
                with within(self._target.timeout_s, secured):
                    secured.do_handshake()
        except BaseException:
            connected.close()
            raise
        return connected


def _is_public(address: str) -> bool:
    found = address_of(address)
    for network, shift in _EMBEDDED.items():
        if found is not None and found in network:
            found = IPv4Address(int(found) >> shift & 0xFFFFFFFF)
    if found is None or found.is_multicast or any(found in network for network in _LOCAL):
        return False
    return found.is_global
