"""The socket of a link, with a thread: connects, reads, writes, and reconnects."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable

from curbstone_client.address import Address
from curbstone_client.link import Link

_DIAL_S_MAX = 5.0
_READ_BYTES = 256 * 1024
_CLOSE_S_MAX = 2.0


class Connection:
    """The successive connections of one link, with their thread. The client's `lock` guards the link."""

    def __init__(
        self,
        link: Link,
        lock: threading.RLock,
        tls: Callable[[Address], ssl.SSLContext | None],
        connect_timeout: float,
        name: str,
    ) -> None:
        self._link = link
        self._lock = lock
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._giving_up: threading.Timer | None = None
        self._news = threading.Condition(lock)
        self._stop = threading.Event()
        self._awake = True
        self._socket: socket.socket | None = None
        self._unsent = memoryview(b"")
        # A socket pair, not a pipe, because every library of green threads can wait for a socket.
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        link.changed = self._changed
        link.came_up = self._news.notify_all
        link.wanted = self._wanted
        link.ask = self._ask
        self._thread = threading.Thread(target=self._run, name=f"curbstone {name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ what the client calls

    def wait_up(self) -> None:
        """Wait until the link is connected.

        Raise CantConnect after `connect_timeout` seconds, or NotAllowed as soon as the server has refused the login.
        """
        deadline = time.monotonic() + self._connect_timeout
        with self._lock:
            while not self._link.is_up:
                if self._link.refused is not None:
                    raise self._link.refused
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._link.not_connected(self._connect_timeout)
                self._news.wait(left)

    def close(self) -> None:
        """Send the output, then close the connection."""
        with self._lock:
            self._stop.set()
            self._link.is_closing = True
            if self._giving_up is not None:
                self._giving_up.cancel()
            self._awake = True
        self._waker.send(b"x")
        self._thread.join(_DIAL_S_MAX + _CLOSE_S_MAX)
        self._wake.close()
        self._waker.close()

    def forget(self) -> None:
        """Close this process's copies of the sockets. Called in a forked child, which has no copy of the thread."""
        self._wake.close()
        self._waker.close()
        if self._socket is not None:
            self._socket.close()

    # ------------------------------------------------------------ inside

    def _wanted(self) -> None:
        if self._giving_up is None:
            self._giving_up = threading.Timer(self._connect_timeout, self._give_up)
            self._giving_up.daemon = True
            self._giving_up.start()

    def _give_up(self) -> None:
        with self._lock:
            self._giving_up = None
            self._link.give_up(self._connect_timeout)

    def _changed(self) -> None:
        """Wake the thread to send output. Called on any thread, under the lock."""
        if not self._awake:
            self._awake = True
            self._waker.send(b"x")

    def _ask(self) -> None:
        """Get another token in a thread, so that the connection continues in the meantime."""
        threading.Thread(target=self._renew, name="curbstone token", daemon=True).start()

    def _renew(self) -> None:
        try:
            token = self._link.token()
        except Exception:
            token = None  # the application's function failed; it is called again while the old login lasts
        with self._lock:
            self._link.renew(token)

    def _run(self) -> None:
        while not self._stop.is_set():
            reason = self._connect()
            with self._lock:
                wait_s = self._link.lost(reason, time.monotonic())
                self._news.notify_all()
            self._stop.wait(wait_s)

    def _connect(self) -> str:
        """Connect, and serve the connection until it ends. Return the reason why it ended or could not be made."""
        address = self._link.address()
        try:
            token = self._link.token()
        except Exception as error:
            # An exception of the application's token function must not end the thread that connects.
            return f"no token: {type(error).__name__}: {error}"
        try:
            connected = socket.create_connection((address.host, address.port), _DIAL_S_MAX)
            with connected:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if tls := self._tls(address):
                    with tls.wrap_socket(connected, server_hostname=address.host) as encrypted:
                        return self._stay(encrypted, token)
                return self._stay(connected, token)
        except OSError as error:
            return str(error) or type(error).__name__

    def _stay(self, connected: socket.socket, token: str | None) -> str:
        connected.setblocking(False)
        self._socket = connected
        self._unsent = memoryview(b"")
        with self._lock:
            self._link.opened(token, time.monotonic())
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(connected, selectors.EVENT_READ)
            stop_by = 0.0
            while True:
                wait_s, failure = self._turn(connected)
                if failure:
                    return failure
                if self._stop.is_set():
                    stop_by = stop_by or time.monotonic() + _CLOSE_S_MAX
                    if not self._unsent or time.monotonic() > stop_by:
                        return "closed"
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
                selector.modify(connected, events)
                for key, ready in selector.select(wait_s):
                    if key.fileobj is self._wake:
                        _drain(self._wake)
                    elif ready & selectors.EVENT_READ and not self._read(connected):
                        return "the server closed the connection"

    def _turn(self, connected: socket.socket) -> tuple[float, str]:
        """Send the output. Return how many seconds the thread may wait, and why the connection must end, or ""."""
        link = self._link
        while True:
            with self._lock:
                now = time.monotonic()
                if now >= link.due:
                    link.tick(now)
                if not self._unsent:
                    self._unsent = memoryview(link.take_output())
                failure = link.failure
                self._awake = bool(self._unsent) and failure is None
                wait_s = max(0.0, link.due - now)
            if self._unsent:
                try:
                    self._unsent = self._unsent[connected.send(self._unsent) :]
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    # The thread waits until the socket is writable, so new output need not wake it: it stays `_awake`.
                    return wait_s, ""
            if failure is not None:
                return 0, str(failure)
            if not self._unsent and not self._awake:
                return wait_s, ""

    def _read(self, connected: socket.socket) -> bool:
        """Read what has arrived. Return False at the end of the stream."""
        while True:
            try:
                data = connected.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            if not data:
                return False
            with self._lock:
                self._awake = True
                self._link.receive(data, time.monotonic())
            # A selector does not see bytes that TLS has already decrypted, so read until TLS has no more.
            if not isinstance(connected, ssl.SSLSocket):
                return True


def _drain(wake: socket.socket) -> None:
    try:
        while wake.recv(4096):
            pass
    except BlockingIOError:
        pass
