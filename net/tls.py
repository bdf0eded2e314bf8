"""TLS on one connection: a protocol towards its socket, a transport towards what is spoken on it.

The event loop's own TLS would do for most; this one is here for what it lacks. Its context is chosen for each
connection, so certificates change while connections come. Only our half may be closed, so that the last answer
arrives as it does over TCP alone. The connection is known, counted and has its deadline from its first byte. And
handshakes, which cost as much as hundreds of messages, are taken one a turn of the loop.
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

Greeted = Callable[["TlsConnection", Certificate | None], asyncio.Protocol]
"""Returns what is spoken on a connection that has shaken hands; is told the certificate that its client showed."""
Failed = Callable[[str], None]
"""Told why there was no handshake; the connection is closed."""


class Handshakes:
    """Those under way in the process, whose next step is one a turn."""

    def __init__(self) -> None:
        self._line: deque[TlsConnection] = deque()
        self._is_due = False

    def want(self, connection: TlsConnection) -> None:
        """Let it go on when it is its turn."""
        self._line.append(connection)
        self._next_soon()

    def _next_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        connection = self._line.popleft()
        if self._line:
            self._next_soon()
        connection.shake_hands()


class TlsConnection(asyncio.Transport, asyncio.Protocol):
    """See the module's docstring."""

    def __init__(self, context: ssl.SSLContext, handshakes: Handshakes, greeted: Greeted, failed: Failed) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshakes = handshakes
        self._greeted = greeted
        self._failed = failed
        self._socket: asyncio.Transport
        self._protocol: asyncio.Protocol | None = None
        self._is_deaf = False
        """Whether our half is closed; what comes then is of no use to anybody."""
        self._is_ended = False
        """Whether the client has sent its last byte."""
        self._stays = False
        """Whether the protocol has something to say to a client that is like that."""

    # --- towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Decrypt, and hand on."""
        if self._is_deaf:
            return
        self._incoming.write(data)
        if self._protocol is not None:
            self._read(self._protocol)
        else:
            self._socket.pause_reading()
            self._handshakes.want(self)

    def eof_received(self) -> bool | None:
        """The client's half of the socket is closed."""
        if self._protocol is not None and not self._is_ended:
            self._end(self._protocol)
        return self._stays

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        else:
            self._fail("the client left before it was done")

    def shake_hands(self) -> None:
        """Go on with the handshake; once it is done the protocol begins."""
        if self._socket.is_closing():
            return
        self._socket.resume_reading()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._send()  # what is wrong, in an alert
            self._fail(error.reason or "it made no sense")
            self._socket.close()
            return
        self._send()
        fields = self._tls.getpeercert()
        self._protocol = self._greeted(self, certificate_of(fields) if fields else None)
        self._protocol.connection_made(self)
        self._read(self._protocol)

    def _fail(self, reason: str) -> None:
        failed, self._failed = self._failed, _said
        failed(reason)

    def _read(self, protocol: asyncio.Protocol) -> None:
        pieces = []
        is_end = False
        try:
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
            is_end = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # somebody meddles with what is sent
            self._socket.abort()
            return
        self._send()
        if pieces:
            protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_end and not self._is_ended and not self._socket.is_closing():
            self._end(self.get_protocol())
            if not self._stays:
                self.close()

    def _end(self, protocol: asyncio.Protocol) -> None:
        self._is_ended = True
        self._stays = bool(protocol.eof_received())

    # --- towards the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        size = len(data)
        if not size or self._is_deaf or self._socket.is_closing():
            return
        try:
            done = self._tls.write(data)
            while done < size:  # a record at a time
                done += self._tls.write(memoryview(data)[done:])
        except ssl.SSLError:
            self._socket.abort()
            return
        self._send()

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`; nothing is read from here on."""
        self._say_goodbye()
        if not self._socket.is_closing():
            self._socket.write_eof()

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def close(self) -> None:
        """See `asyncio.BaseTransport`; the client's own goodbye is not waited for."""
        self._say_goodbye()
        self._socket.close()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._socket.abort()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._socket.resume_reading()

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._socket.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._socket.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.Protocol:
        """See `asyncio.BaseTransport`."""
        assert self._protocol is not None
        return self._protocol

    def _say_goodbye(self) -> None:
        """Tell the client that this was the last of it, so that nobody can cut it short unnoticed."""
        if self._is_deaf or self._socket.is_closing():
            return
        self._is_deaf = True
        with suppress(ssl.SSLError):  # it does not wait for the answer, and drops what else has come
            self._tls.unwrap()
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())


def _said(_reason: str) -> None:
    """It was told already."""
