"""An HTTP client over the standard library, for the commands, Spark, webhooks, and the keys of issuers.

No redirect is followed and no proxy is used, because the server is usually on this machine. All errors are one of
`ERRORS`.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

ERRORS = (OSError, http.client.HTTPException)

_IN_A_PATH = "!$%&'()*+,/:;=?@[]~"
"""The characters that are not quoted in a path; % is one of them because of parts that are quoted already."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its whole body."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """Return the value of a JSON body. Raise ValueError if the body is not JSON."""
        return json.loads(self.body)


class Connection:
    """A persistent connection to one server, opened when needed. Not thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float | None,
        tls: ssl.SSLContext | None = None,
        connect: Callable[[], socket.socket] | None = None,
    ) -> None:
        """`timeout_s` limits each read and write. `connect` creates the socket, if it is given.

        Raise ValueError if the URL is not http:// or https:// with a host.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("http://host:port or https://host:port")
        self._parts = parts
        self._timeout_s = timeout_s
        self._tls = tls
        self._make_socket = connect
        self._connection: http.client.HTTPConnection | None = None
        self._is_idle = False
        """Whether the last reply was read completely."""

    @property
    def is_open(self) -> bool:
        """Whether the connection of an earlier request is open."""
        return self._connection is not None

    def connect(self) -> socket.socket:
        """Connect if necessary, and return the socket."""
        connection = self._connection
        if connection is not None and self._is_idle and _is_closed(connection.sock):
            self.close()
        if self._connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                tls = self._tls or ssl.create_default_context()
                connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=tls)
            else:
                connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            if self._make_socket is not None:
                connection.sock = self._make_socket()
            else:
                connection.connect()
                connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = connection
            self._is_idle = False
        found: socket.socket = self._connection.sock
        return found

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the reply, whose body is not read yet. `path` is appended to that of the URL."""
        opened = self.connect()
        opened.settimeout(timeout_s)
        connection = self._connection
        assert connection is not None
        self._is_idle = False
        target = quote(self._parts.path.rstrip("/") + path, safe=_IN_A_PATH)
        if query:
            target += f"?{urlencode(query, quote_via=quote)}"
        try:
            connection.request(method, target or "/", body, dict(headers or {}))
            reply = connection.getresponse()
            yield reply
        except BaseException:
            self.close()  # otherwise the rest of this reply would be read as the next one
            raise
        self._is_idle = True
        if reply.will_close or not reply.isclosed():
            self.close()

    def request(self, method: str, path: str, *, bytes_max: int | None = None, **options: Any) -> Reply:
        """Send a request and return the reply, with at most `bytes_max` bytes of the body.

        The other options are those of `stream`, except that `timeout_s` is by default that of the connection.
        """
        options.setdefault("timeout_s", self._timeout_s)
        with self.stream(method, path, **options) as reply:
            return Reply(reply.status, reply.reason, reply.headers, reply.read(bytes_max))

    def send_json(self, method: str, path: str, value: object) -> Reply:
        """Send a value as JSON and return the reply."""
        headers = {"content-type": "application/json"}
        return self.request(method, path, body=json.dumps(value).encode(), headers=headers)

    def interrupt(self) -> None:
        """End a blocking read on another thread, after it has returned what has arrived."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            _shut(connection.sock)

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_closed(opened: socket.socket) -> bool:
    """Return whether the server has closed an idle connection, which makes it readable."""
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return bool(poll.poll(0))


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # it may have been closed in the meantime
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # the method of SSLSocket is not safe for threads


@contextmanager
def within(seconds: float, connected: socket.socket) -> Iterator[None]:
    """Close the connection and raise TimeoutError if the block takes longer.

    The timeout of the socket limits only a single read, so a slow sender could continue forever.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        _shut(connected)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except ERRORS:
        if not is_over.is_set():
            raise
    finally:
        timer.cancel()
    if is_over.is_set():  # even if nothing was raised, because the parser accepts a truncated head
        raise TimeoutError(f"it took more than {seconds:g} s")


def fetch(url: str, seconds: float, bytes_max: int, headers: Mapping[str, str]) -> bytes:
    """Return the body of a URL, at most `bytes_max` + 1 bytes, within `seconds`. Raise OSError."""
    until_s = time.monotonic() + seconds
    parts = urlsplit(url)
    connection = Connection(parts._replace(path="", query="").geturl(), timeout_s=seconds)
    target = parts._replace(scheme="", netloc="").geturl()
    try:
        opened = connection.connect()
        with within(max(until_s - time.monotonic(), 0), opened):
            reply = connection.request("GET", target, headers=headers, bytes_max=bytes_max + 1)
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP response: {type(error).__name__}") from None
    finally:
        connection.close()
    if reply.status != 200:
        raise OSError(f"the server answered {reply.status}")
    return reply.body


class Backoff:
    """Exponential backoff: each pause is twice as long as the one before, up to a limit."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """Return the pause before the next attempt."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return pause_s

    def reset(self) -> None:
        """Restart with the first pause, after a success."""
        self._next_s = self._first_s
