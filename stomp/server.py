"""The TCP server: the only file of this room that knows sockets, the loop and the clock.

Each connection is an `asyncio.Protocol` around a `Session`: reads go in at once, what came out in
a turn goes out in one write. Two kinds of pressure are passed on. To the consumers: a full socket
holds them. To the client: it is not read while too much of what it sent is on its way to the
disk, or while too much output waits for it to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, cast

from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.traffic import Traffic
from curbstone.stomp import private
from curbstone.stomp.errors import one_line
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session

if TYPE_CHECKING:
    from curbstone.core.broker import Broker
    from curbstone.core.host import Host

log = logging.getLogger("curbstone.stomp")

WRITE_BUFFER_BYTES = 256 * 1024
"""Unsent output at which consumers are held."""
BACKLOG = 1024
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds and probes after which a peer that vanished without a word is given up, where the system can."""
LINGER_S = 2.0
"""After the last frame the client gets this long to read it and close; see `_Client._part`."""
STOP_S = 5.0
"""How long `stop` waits for the clients to go before it cuts them off."""


class StompServer:
    """Serves STOMP over TCP."""

    def __init__(
        self, broker: Broker, host: Host, *, limits: Limits | None = None, single_queue: QueueName | str | None = None
    ) -> None:
        self.broker = broker
        self.host = host
        self.limits = limits or Limits()
        self.single_queue = parse_queue_name(single_queue) if isinstance(single_queue, str) else single_queue
        self.sync = broker.health().sync
        self.traffic = Traffic()
        """Of all its connections."""
        self._listener: asyncio.Server | None = None
        self._clients: set[_Client] = set()
        self._empty = asyncio.Event()
        self._stopping = False

    async def start(self, address: tuple[str, int]) -> tuple[str, int]:
        """Listen and return the address bound. Private queues that a crash left behind are deleted first."""
        private.clear(self.broker)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Client(self), *address, backlog=BACKLOG)
        bound = self._listener.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Accept no more, tell the clients with an ERROR, let commits under way confirm, close."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients):
            client.shut_down()
        if self._clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), STOP_S)
        for client in list(self._clients):
            client.abort()

    def joined(self, client: _Client) -> None:
        """A client connected."""
        self._clients.add(client)
        self._empty.clear()
        if self._stopping:
            client.shut_down()

    def left(self, client: _Client) -> None:
        """A client is gone."""
        self._clients.discard(client)
        if not self._clients:
            self._empty.set()


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: StompServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._session: Session
        self._peer = ""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._reading = True
        self._full = False
        self._parting = False
        self._eof = False
        self._connected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and start the session."""
        # A cast, for uvloop's transports have the methods and not the type.
        self._transport = cast(asyncio.Transport, transport)
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            # asyncio sets it only on sockets made with the TCP protocol number; without it a small
            # reply waits 40 ms for the client's delayed acknowledgment.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    raw.setsockopt(socket.IPPROTO_TCP, option, value)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._peer = "{}:{}".format(*transport.get_extra_info("peername", ("?", 0))[:2])
        server = self._server
        now_ms = server.host.now_ms()
        self._session = Session(
            server.broker,
            server.limits,
            self._changed,
            name=os.urandom(8).hex(),
            now_ms=now_ms,
            sync=server.sync,
            single_queue=server.single_queue,
            traffic=server.traffic,
        )
        self._tick()
        server.joined(self)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        session = self._session
        if session.ending:
            return
        session.receive(data, self._server.host.now_ms(), int(time.time() * 1000))
        if not self._connected and session.connected:
            self._connected = True
            self._tick()  # CONNECT settled how often to look
        if session.congested or self._full:
            self._steer()

    def eof_received(self) -> bool:
        """The client sends no more; it may have closed only its half and wait for the last receipts."""
        self._eof = True
        if self._parting:
            return False
        self._session.end_input()
        return True

    def pause_writing(self) -> None:
        """The socket is full."""
        self._full = True
        self._session.hold()
        self._steer()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._full = False
        if not self._session.ending:
            self._session.resume()
        self._steer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._session.lose()
        self._server.left(self)

    def shut_down(self) -> None:
        """Take leave of the client: the server stops."""
        self._session.shut_down("the server is shutting down")

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _changed(self) -> None:
        """The session has output, or is done: flush once for everything of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        session = self._session
        output = session.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(b"".join(output))
        if session.closing:
            self._part()
        elif not self._reading:
            self._steer()

    def _steer(self) -> None:
        """Read or do not read, as the session and the socket can take it."""
        session = self._session
        if session.ending or self._transport.is_closing():
            return
        full = self._full and self._transport.get_write_buffer_size() > self._server.limits.output_bytes_max
        reading = not session.congested and not full
        if reading == self._reading:
            return
        self._reading = reading
        session.reading(reading, self._server.host.now_ms())
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _part(self) -> None:
        """End so that the client really gets the last frame.

        Closing a socket with unread input makes the kernel send a reset, which destroys what the client has
        not read yet. So only our half is closed, its input is read and dropped until it closes its half.
        """
        if self._parting or self._transport.is_closing():
            return
        self._parting = True
        if self._session.failure:
            log.info("%s: %s", self._peer, one_line(self._session.failure))
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._eof:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self._server.host.now_ms()
        due_ms = self._session.tick(now_ms)
        if not self._parting:
            self._timer = self._loop.call_later((due_ms - now_ms) / 1000, self._tick)
