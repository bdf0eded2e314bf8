"""One message as an HTTP request to somebody's URL, signed as Standard Webhooks says, and what the answer means.

Only to addresses that are public, unless that is allowed: whoever may publish could else reach what only this
machine can. The name is looked up once for a connection, and the connection goes to the address that was looked at.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from curbstone.exit_codes import WRONG, CommandFailed

if TYPE_CHECKING:
    from curbstone_client.sync import Message

_AGAIN = (408, 425, 429)
"""Of the 4xx those that say nothing against the message."""

_ANSWER_BYTES_MAX = 64 * 1024
"""More of an answer is not read: what it says does not matter, and its sender is somebody else."""

_PASSED = ("traceparent", "tracestate", "baggage", "correlation-id")


class Refused(Exception):
    """The receiver will never take this message."""


class Failed(Exception):
    """The receiver did not take it this time; `retry_after` in seconds if it said when."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def secret_of(text: str) -> bytes:
    """Return the key that a secret file holds: `whsec_` and base64, or any text."""
    text = text.strip()
    if not text:
        raise CommandFailed("the secret file is empty", WRONG)
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise CommandFailed("behind whsec_ the secret must be base64", WRONG) from None


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages go."""

    url: str
    secret: bytes | None
    timeout_s: float
    allow_private: bool

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise CommandFailed("--url must be http:// or https:// with a host, and no user or password in it", WRONG)


class Sender:
    """Sends messages to a target, one after the other, over a connection that is kept."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._parts = urlsplit(target.url)
        self._connection: http.client.HTTPConnection | None = None

    def send(self, message: Message) -> None:
        """Have the receiver take a message; raise Refused or Failed."""
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        kept = self._connection is not None
        try:
            status, retry_after = self._post(path, message)
        except (OSError, http.client.HTTPException) as error:
            self._close()
            # One that was kept may have been closed by the receiver before this request.
            if not kept or isinstance(error, TimeoutError):
                raise Failed(f"{type(error).__name__}: {error}") from None
            self.send(message)
            return
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _AGAIN:
            raise Refused(f"the receiver answered {status}")
        raise Failed(f"the receiver answered {status}", retry_after)

    def _post(self, path: str, message: Message) -> tuple[int, float | None]:
        connection = self._connection or self._connect()
        self._connection = connection
        with _within(self._target.timeout_s, connection.sock):
            connection.request("POST", path, message.body, self._headers(message))
            reply = connection.getresponse()
            reply.read(_ANSWER_BYTES_MAX)
        retry_after = reply.headers.get("retry-after") or ""
        if reply.will_close or not reply.isclosed():
            self._close()
        return reply.status, float(retry_after) if retry_after.isdigit() else None

    def _headers(self, message: Message) -> Mapping[str, str]:
        raw = message.raw_headers
        headers = {name: raw[name] for name in raw if name.startswith("x-msg-") or name in _PASSED}
        headers = {name: value for name, value in headers.items() if value.isprintable() and value.isascii()}
        now = int(time.time())
        headers |= {"Content-Type": message.type or "application/octet-stream", "User-Agent": "curbstone"}
        headers |= {"webhook-id": message.id, "webhook-timestamp": str(now)}
        if self._target.secret is not None:
            headers["webhook-signature"] = signature(self._target.secret, message.id, now, message.body)
        return headers

    def _connect(self) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        is_tls = self._parts.scheme == "https"
        port = self._parts.port or (443 if is_tls else 80)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        allowed = [each for each in found if self._target.allow_private or _is_public(str(each[4][0]))]
        if not allowed:
            raise Failed(f"{host} is no public address; --allow-private sends there all the same")
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
                with _within(self._target.timeout_s, secured):
                    secured.do_handshake()
        except BaseException:
            connected.close()
            raise
        kind_of = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind_of(host, port, timeout=self._target.timeout_s)
        connection.sock = connected
        return connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@contextmanager
def _within(seconds: float, connected: socket.socket) -> Iterator[None]:
    """End what takes longer, though something came all the time: raise TimeoutError. Only a read alone has a limit."""
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        with suppress(OSError):  # closed meanwhile
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # that of TLS is not to be called from here

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
    if is_over.is_set():  # also where nothing was raised: to the parser a head that was cut off is a whole one
        raise TimeoutError(f"it took more than {seconds:g} s")


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    return bool(mapped.is_global and not mapped.is_multicast)
