"""TLS for one connection: a protocol towards its socket, and a transport towards the protocol over TLS.

Compared to the event loop's own TLS it adds four things. Each connection gets the current context, so certificates can
change while the server runs. It can close only our half, so that the last reply arrives as it does over plain TCP. The
connection is counted and has a deadline from its first byte. And because a handshake costs as much as hundreds of
messages, each turn of the event loop does only one step of one handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from curbstone.net.peer import Certificate, certificate_of

READ_BYTES = 256 * 1024

HandshakeDone = Callable[["TlsConnection", Certificate | None], asyncio.Protocol]
"""Called after the handshake with the client's certificate, if there is one; returns the protocol of the connection."""
HandshakeFailed = Callable[[str], None]
"""Called with the reason if the handshake fails; the connection is closed."""


class Handshakes:
    """The handshakes in progress. Each turn of the event loop does one step of one of them."""

    def __init__(self) -> None:
        self._queue: deque[TlsConnection] = deque()
        self._is_due = False

    def enqueue(self, connection: TlsConnection) -> None:
        """Queue a connection for the next step of its handshake."""
        self._queue.append(connection)
        self._next_soon()

    def _next_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        connection = self._queue.popleft()
        if self._queue:
            self._next_soon()
        connection.continue_handshake()


class TlsConnection(asyncio.Transport, asyncio.Protocol):
    """A TLS connection, as both transport and protocol."""

    def __init__(
        self,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        handshake_done: HandshakeDone,
        handshake_failed: HandshakeFailed,
    ) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshakes = handshakes
        self._handshake_done = handshake_done
        self._handshake_failed = handshake_failed
        self._socket: asyncio.Transport
        self._protocol: asyncio.Protocol | None = None
        self._is_write_closed = False
        """Whether our half is closed; later input is dropped."""
        self._is_read_closed = False
        """Whether the client has closed its half."""
        self._is_half_open_allowed = False
        """Whether the protocol keeps the connection open after the client closed its half."""

    # --- towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_write_closed:
            return
        self._incoming.write(data)
        if self._protocol is not None:
            self._read(self._protocol)
        else:
            self._socket.pause_reading()
            self._handshakes.enqueue(self)

    def eof_received(self) -> bool | None:
        if self._protocol is not None and not self._is_read_closed:
            self._end(self._protocol)
        return self._is_half_open_allowed

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        else:
            self._fail("the client disconnected during the handshake")

    def continue_handshake(self) -> None:
        """Do the next step of the handshake; when it is complete, start the protocol."""
        if self._socket.is_closing():
            return
        self._socket.resume_reading()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._send()  # the alert with the reason, for the client
            self._fail(error.reason or "invalid TLS data")
            self._socket.close()
            return
        self._send()
        fields = self._tls.getpeercert()
        self._protocol = self._handshake_done(self, certificate_of(fields) if fields else None)
        self._protocol.connection_made(self)
        self._read(self._protocol)

    def _fail(self, reason: str) -> None:
        handshake_failed, self._handshake_failed = self._handshake_failed, _ignore_reason
        handshake_failed(reason)

    def _read(self, protocol: asyncio.Protocol) -> None:
        pieces = []
        is_end = False
        try:
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
            is_end = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # the bytes were changed on the way
            self._socket.abort()
            return
        self._send()
        if pieces:
            protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_end and not self._is_read_closed and not self._socket.is_closing():
            self._end(self.get_protocol())
            if not self._is_half_open_allowed:
                self.close()

    def _end(self, protocol: asyncio.Protocol) -> None:
        self._is_read_closed = True
        self._is_half_open_allowed = bool(protocol.eof_received())

    # --- towards the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        size = len(data)
        if not size or self._is_write_closed or self._socket.is_closing():
            return
        try:
            done = self._tls.write(data)
            while done < size:  # one TLS record at a time
                done += self._tls.write(memoryview(data)[done:])
        except ssl.SSLError:
            self._socket.abort()
            return
        self._send()

    def write_eof(self) -> None:
        """Close our half. Later input is dropped."""
        self._send_close_notify()
        if not self._socket.is_closing():
            self._socket.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Close the connection without waiting for the client's own close_notify."""
        self._send_close_notify()
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def is_reading(self) -> bool:
        return self._socket.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._socket.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.Protocol:
        assert self._protocol is not None
        return self._protocol

    def _send_close_notify(self) -> None:
        """Send close_notify, which shows the client that nothing was truncated."""
        if self._is_write_closed or self._socket.is_closing():
            return
        self._is_write_closed = True
        with suppress(ssl.SSLError):  # raised if the client's close_notify has not arrived yet, or other data has
            self._tls.unwrap()
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())


def _ignore_reason(_reason: str) -> None:
    """Do nothing, because the failure was reported before."""
